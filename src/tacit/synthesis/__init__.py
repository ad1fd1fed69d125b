"""A synthetic corpus that may be shared, with a certificate of its text.

settings          what is asked for, and the plan that is made of it
generators        where candidates come from: a run, a public model, a file of public text
candidates        sampled, each once, kept on disk as they come
space             texts as whole-number points, each by itself
votes             what the private records say of candidates: bounded sums
choosing          what is made of noisy votes, without another look
session           the whole, from settings to a file with its ledger and certificate
quality           how good the text is, each figure marked private or public
"""
