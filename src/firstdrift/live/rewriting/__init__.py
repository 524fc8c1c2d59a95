"""What one change in the reference's own code gives the candidate's tensor?"""
