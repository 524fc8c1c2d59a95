"""Operations with their formula, other legal ways to compute it, and ways to be wrong."""
