"""The pages of the documentation as tests read them: blocks, what they run, what they show, what they declare."""
