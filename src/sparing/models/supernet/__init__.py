"""Super-net: blocks compete for every slot of a stack."""
