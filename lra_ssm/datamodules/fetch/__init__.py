"""What comes from elsewhere: downloads, archives, the Long Range Arena release."""
