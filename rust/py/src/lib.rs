//! The `blockyard._core` extension module: buffers in, arrays out, one crossing per verb.
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: error
//! layer: gil
//! layer: dlpack
//! layer: buffers
//! layer: arguments keys places plan runs cache_class
//! layer: on_disk results
//! layer: recorder freed_blocks
//! layer: lease parked ticket prompt
//! layer: batch
//! layer: begin cache disk engine events finish flights forget held park promises queries riders step checksums inspect store
//! layer: decode handover
//! layer: peer
//!
//! The docs of what Python sees are its docstrings, and the only source of them: in Google's style, as
//! `help` shows them. `build.rs` puts them into the stub of the wheel.

#![expect(clippy::doc_markdown, reason = "docstrings are for Python's readers")]

mod arguments;
mod batch;
mod begin;
mod buffers;
mod cache;
mod cache_class;
mod checksums;
mod decode;
mod disk;
mod dlpack;
mod engine;
mod error;
mod events;
mod finish;
mod flights;
mod forget;
mod freed_blocks;
mod gil;
mod handover;
mod held;
mod inspect;
mod keys;
mod lease;
mod on_disk;
mod park;
mod parked;
mod peer;
mod places;
mod plan;
mod promises;
mod prompt;
mod queries;
mod recorder;
mod results;
mod riders;
mod runs;
mod step;
mod store;
mod ticket;

/// Block bookkeeping in Rust; the public names are those of the package `blockyard`.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    use crate::arguments::KEY_HASHES;
    use crate::gil::{LONG, enter, hash};
    use blockyard_core::{Field, Kind, Stats};
    use blockyard_guard::guarded;
    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_export]
    use crate::batch::LeaseBatch;
    #[pymodule_export]
    use crate::cache_class::Cache;
    #[pymodule_export]
    use crate::checksums::checksums;
    #[pymodule_export]
    use crate::disk::{DiskLane, DiskThreads};
    #[pymodule_export]
    use crate::freed_blocks::FreedKeys;
    #[pymodule_export]
    use crate::handover::{OfferServer, Offers};
    #[pymodule_export]
    use crate::held::{HeldBlocks, SlotGenerations};
    #[pymodule_export]
    use crate::inspect::{DiskBaseline, DiskInspector};
    #[pymodule_export]
    use crate::keys::Keys;
    #[pymodule_export]
    use crate::lease::Lease;
    #[pymodule_export]
    use crate::parked::Parked;
    #[pymodule_export]
    use crate::peer::{Bell, Peer};
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::recorder::Recorder;
    #[pymodule_export]
    use crate::results::{Forgotten, Need, Probe, Room, Soon, Violation};
    #[pymodule_export]
    use crate::riders::Riders;
    #[pymodule_export]
    use crate::runs::{Marks, consecutive, runs, through};
    #[pymodule_export]
    use crate::store::{StoreJob, StoreLane};
    #[pymodule_export]
    use crate::ticket::Ticket;

    #[pymodule_export]
    use crate::error::{
        BlockyardError, ForeignLease, InUse, Misuse, NoRoom, SpentLease, TooLarge, Unavailable,
        Unsupported,
    };

    /// Marks a fork, in the child: caches that were made before it refuse to be used there.
    #[pyfunction]
    fn _forked() {
        crate::cache_class::forked();
    }

    /// Panics on purpose, so that tests see that a panic is contained.
    ///
    /// It panics in a verb of this cache, while keys are made, or outside of both; at the long places
    /// it panics while detached. R2-8
    #[guarded]
    #[pyfunction]
    fn _panic(py: Python<'_>, cache: &Cache, place: &str) -> PyResult<()> {
        let blocks = if place.starts_with("long") { LONG } else { 0 };
        match place {
            "verb" | "long verb" => enter(py, &cache.inner, blocks, |_| panic!("on purpose"))?,
            "keys" | "long keys" => hash(py, &cache.inner, blocks, || panic!("on purpose"))?,
            _ => panic!("on purpose"),
        }
        Ok(())
    }

    /// Returns name, unit, kind, metric and meaning of what `stats` gives: for all, then per tier.
    ///
    /// `stats` has blocks in plans from tier to tier behind those. In a metric `*` is the tier's word.
    /// Any thread may call it.
    #[pyfunction]
    fn stats_schema() -> (Vec<Row>, Vec<Row>) {
        let row = |field: &Field| {
            let kind = match field.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            (field.name, field.unit, kind, field.metric, field.help)
        };
        let tiers = Stats::tier_schema().map(row);
        (Stats::schema().map(row).collect(), tiers.collect())
    }

    /// Name, unit, kind, metric and meaning.
    type Row = (
        &'static str,
        &'static str,
        &'static str,
        &'static str,
        &'static str,
    );

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG", cfg!(debug_assertions))?;
        let encodings = PyDict::new(module.py());
        for (word, hash) in KEY_HASHES {
            encodings.set_item(word, hash.encoding())?;
        }
        module.add("KEY_ENCODINGS", encodings)?;
        if cfg!(debug_assertions) {
            let message =
                c"blockyard is a debug build, 10 to 50 times slower: build with --release";
            PyErr::warn(
                module.py(),
                &module.py().get_type::<PyRuntimeWarning>(),
                message,
                1,
            )?;
        }
        Ok(())
    }
}
