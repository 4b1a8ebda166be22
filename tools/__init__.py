"""Tools of a checkout that are run by hand: `incident` on a recording, `gpu` on a machine with
a GPU, `step_costs` of paths that are left."""
