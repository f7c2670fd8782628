"""From a surface to the numbers and words of a figure: frozen, comparable, without any plotly in it."""
