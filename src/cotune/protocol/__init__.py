"""What may be asked, and the mathematics that both sides compute."""
