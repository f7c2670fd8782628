"""Refinement: levels of finer grids over a landscape, the blocks of each that are computed, all shown as one grid."""
