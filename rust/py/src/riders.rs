//! `Riders`: the caches of several groups of layers, which agree the length of a hit.

use crate::arguments;
use crate::buffers::{each, integers};
use crate::cache_class::Cache;
use crate::error::Failure;
use crate::gil::enter;
use crate::keys::Keys;
use blockyard_core::Key;
use blockyard_guard::guarded;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The caches of the groups of layers beside the first one, which agree the length of a hit.
///
/// Args:
///     groups: For each group its cache, and whether it needs no block at some lengths.
///     starts: Returns for a length, in blocks, the first block that each group needs there; the length for
///         none. It is asked once for each length.
///     step: Blocks between the lengths that may be agreed.
///
/// Raises:
///     Misuse: `step` is no number of blocks, or `groups` has something else.
#[pyclass(module = "blockyard._core")]
pub(crate) struct Riders {
    groups: Vec<(Py<Cache>, bool)>,
    starts: Py<PyAny>,
    step: u32,
    known: HashMap<u32, Vec<u32>>,
}

/// A length, whether some of it is in flight, which group made it this short by which block, and `far`.
type Agreed = (u32, bool, Option<usize>, Option<u32>, u32);

#[guarded]
#[pymethods]
impl Riders {
    #[new]
    fn new(
        groups: &Bound<'_, PyAny>,
        starts: Py<PyAny>,
        #[pyo3(from_py_with = arguments::step)] step: u32,
    ) -> PyResult<Self> {
        if step == 0 {
            let message = "step = 0: give the blocks between lengths, at least 1";
            return Err(Failure::misuse(message).into());
        }
        let groups = each("groups", groups, groups.try_iter()?, |at, one| {
            let wrong = || Failure::misuse(format!("groups[{at}]: give (cache, rests)"));
            Ok(one.extract().map_err(|_| wrong())?)
        });
        Ok(Self {
            groups: groups?,
            starts,
            step,
            known: HashMap::new(),
        })
    }

    /// Returns the greatest length that every group has what it needs for, or will have.
    ///
    /// It changes nothing, and asks one cache after the other. A missing block ends every length that
    /// needs it, so that the next one that is tried ends before it.
    ///
    /// Args:
    ///     keys: The keys of a request. At least one of its tokens is computed.
    ///     after: Blocks that the engine has itself, in all groups: nothing is asked of them.
    ///     far: Blocks that the first group has or will have, with those.
    ///     ready: Blocks of these that are not in flight.
    ///
    /// Returns:
    ///     The length in blocks, `after` for none; whether some of it is in flight; the number of the group,
    ///     from 1, that made it this short, and the block that this one lacks to go on, both None if none did;
    ///     and `far` without what is computed.
    ///
    /// Raises:
    ///     Misuse: A cache owns its device, the keys are of blocks of another size, or fewer than `far`, or
    ///         there is not one start for each group.
    fn agree(
        &mut self,
        keys: &Bound<'_, Keys>,
        #[pyo3(from_py_with = arguments::before)] after: u32,
        #[pyo3(from_py_with = arguments::far)] far: u32,
        #[pyo3(from_py_with = arguments::ready)] ready: u32,
    ) -> PyResult<Agreed> {
        let (py, chain) = (keys.py(), &keys.get().0);
        let all = chain.keys();
        if far as usize > all.len() {
            let blocks = all.len();
            let message = format!("far = {far}: the keys are of {blocks}; give no more");
            return Err(Failure::misuse(message).into());
        }
        // No state may have seen the last token before.
        let most = chain.tokens().saturating_sub(1) / u64::from(chain.block_size());
        let far = far.min((most as u32).max(after));
        let (mut cut, mut lacks) = (None, None);
        let mut blocks = far - far % self.step;
        'length: while blocks > after {
            let starts = match self.known.entry(blocks) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let starts = self.starts.call1(py, (blocks,))?;
                    let starts = integers("starts", starts.bind(py))?;
                    new.insert(one_each(starts, self.groups.len())?)
                }
            };
            let mut waits = blocks > ready;
            for (at, ((cache, rests), &start)) in self.groups.iter().zip(&*starts).enumerate() {
                let cache = cache.get();
                cache.check_sound()?;
                cache.check_keys(chain)?;
                let first = start.clamp(after, blocks);
                let run = &all[first as usize..blocks as usize];
                let (missing, fills) =
                    enter(py, &cache.inner, run.len(), |state| state.lacking(run))?;
                if let Some(missing) = missing {
                    let lack = first + missing as u32;
                    (cut, lacks) = (Some(at + 1), Some(lack));
                    blocks = if *rests {
                        lack
                    } else {
                        after + known(py, cache, &all[after as usize..lack as usize])?
                    };
                    blocks -= blocks % self.step;
                    continue 'length;
                }
                waits |= fills;
            }
            return Ok((blocks, waits, cut, lacks, far));
        }
        Ok((after, false, cut, lacks, far))
    }
}

fn one_each(starts: Vec<u32>, groups: usize) -> PyResult<Vec<u32>> {
    if starts.len() == groups {
        return Ok(starts);
    }
    let message = format!(
        "starts: {} for {groups} groups: return one for each",
        starts.len()
    );
    Err(Failure::misuse(message).into())
}

/// How many of these blocks there are up to the last one that is below, or on its way there.
fn known(py: Python<'_>, cache: &Cache, run: &[Key]) -> PyResult<u32> {
    Ok(enter(py, &cache.inner, run.len(), |state| state.last_known(run))? as u32)
}
