"""Asking through a vendor's batch endpoint: at half the price, within a day."""
