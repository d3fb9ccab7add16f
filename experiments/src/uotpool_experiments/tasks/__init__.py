"""What is trained and tested: one package per task."""
