"""Golden values: the numbers of commit 1993806, which stay whatever moves around them."""
