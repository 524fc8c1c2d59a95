"""What happens to numbers that are stored: another tensor's, another order, another format."""
