//! The lock: the standard library's, or shuttle's when its feature is on.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, TryLockError,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread::yield_now;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread::yield_now;
#[cfg(feature = "shuttle")]
pub(crate) use std::sync::TryLockError;
