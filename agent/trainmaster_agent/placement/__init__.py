"""In-cluster schedulers: one module per scheduler behind one small port that asks it for a gang. Pure, but for detection."""
