"""Rules that tell when a network goes wrong, of weights, outputs, gradients and changes; and the statistics they read.

statistics      what is known of the values of a tensor, one batch after another
rules           the table of rules, each with its threshold, and which of them fire
asked           which rules a user asks for, with which thresholds
masks           what is infinite, or next to it, by a mask, and not by a fault
command         the command that inspects a point, as it is typed
log_masks       whether -Inf of a logarithm is a mask's, or a fault
network         what each layer of a network gives, seen while it computes
"""
