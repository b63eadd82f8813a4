"""What a rank does, as data: lists that others run or write."""
