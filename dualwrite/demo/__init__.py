"""``dualwrite demo``: loads real rows through repeated ``kill -9``, then checks both sides independently."""
