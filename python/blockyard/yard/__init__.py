"""The bookkeeping: which block lives where, and who may use it. It never touches a byte."""
