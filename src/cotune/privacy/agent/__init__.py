"""The key agent: a process of its own that holds secret key shares and computes with ciphertexts.

It runs under the interpreter that OpenFHE has a wheel for, not under cotune's. So nothing in this
package imports cotune, and its modules import each other relatively.
"""
