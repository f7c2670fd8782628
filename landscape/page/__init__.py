"""The page of `landscape view`: an HTTP server over places that hold runs, which only reads them, also live."""
