"""``dualwrite demo``: real rows through ``kill -9``, and an independent look at both sides afterwards."""
