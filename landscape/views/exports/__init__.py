"""A surface as a file: pictures, tables and meshes."""
