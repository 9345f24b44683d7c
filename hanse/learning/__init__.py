"""The mathematics of the methods, free of input and output: arrays in, arrays out.

Federated boosting, in the order in which data flows: `setup_sums` (centres, base margins, units), `binning` and
`sketch` (bucket numbers, sketches), `bin_edges`, `objectives` (gradients), `atoms`, `splitting` (growing),
`trees` (predicting), `booster` (exporting), `metrics`.

Networks: `training_options`, `networks` (and `roles` in it), `xan`, `augmentation`, `local_training`,
`classification`; `averaging` and `compression` know arrays alone.

Modules are imported by name; importing this package loads none of them, so that a program pays only for what it uses.
"""
