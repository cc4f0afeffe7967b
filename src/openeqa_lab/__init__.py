"""Embodied question answering, measured: OpenEQA (EM-EQA) and EmbodiedQA."""
