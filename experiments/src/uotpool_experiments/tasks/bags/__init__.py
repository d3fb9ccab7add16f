"""Bags of MNIST digits as in Ilse et al. (2018): is there a 9?"""
