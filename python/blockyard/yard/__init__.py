"""The bookkeeping: which block lives where, and what may use it. It never touches a byte."""
