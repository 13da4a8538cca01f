"""Neural networks as FedEx sees them: one vector of weights, Loc_c on it, and Agg_b on many.

Khodak et al., Federated Hyperparameter Tuning (FedEx), section 2 and appendix B: a federated method
is a local training with hyperparameters c and an aggregation with hyperparameters b.
"""
