"""How each in-cluster scheduler is asked for a gang: one module a scheduler behind one small port. Pure, but for detection."""
