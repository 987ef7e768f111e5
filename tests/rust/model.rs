//! Placeholder replaced by the model.
