"""From prepared values to plotly figures."""
