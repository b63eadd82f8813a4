"""Parameters of a parallel module as programs see them: what is read and written is whole."""
