//! What crosses to a disk and back: errors, owners of blocks, times, and what is found again.

use crate::buffers::{MOST, array, each, frozen, shown, too_many};
use crate::error::{Failure, Outcome, Unavailable};
use crate::keys::key_rows;
use blockyard_disk as disk;
use disk::{Owner, Record};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::time::Duration;

/// Slots, keys, parents and stamps.
pub(crate) type Restored<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
);

pub(crate) fn refused(error: &disk::Error) -> PyErr {
    match error {
        disk::Error::Argument { .. } | disk::Error::Format { .. } => {
            Failure::misuse(error.to_string()).into()
        }
        disk::Error::NoRoom { path, wanted, free } => {
            let made = Unavailable::new_err(error.to_string());
            let noted = Python::attach(|py| {
                let value = made.value(py);
                value.setattr("folder", path)?;
                value.setattr("quota", free >= wanted)
            });
            noted.map_or_else(|error| error, |()| made)
        }
        disk::Error::System { .. } => Unavailable::new_err(error.to_string()),
    }
}

/// The rows of bytes of shape (rows, 32).
pub(crate) fn rows(name: &'static str, from: &Bound<'_, PyAny>) -> PyResult<Vec<disk::Key>> {
    Ok(key_rows(name, from)?.into_iter().map(|key| key.0).collect())
}

/// Whose block has this key, behind this parent.
pub(crate) fn owner(key: disk::Key, parent: disk::Key) -> Owner {
    if key[..24] == [0; 24] {
        Owner::Nobody(key)
    } else if parent == [0; 32] {
        Owner::First(key)
    } else if parent[..16] == [0; 16] && parent[16] & 1 == 1 {
        Owner::Rooted { key, root: parent }
    } else {
        Owner::After { key, parent }
    }
}

pub(crate) fn duration(name: &str, value: f64) -> Outcome<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Failure::misuse(format!("{name} = {value}: must be seconds, 0 or more")))
}

/// Arrays of what is found again.
pub(crate) fn restored<'py>(py: Python<'py>, found: &[Record]) -> PyResult<Restored<'py>> {
    if found.len() > MOST {
        return Err(too_many("the table", found.len()).into());
    }
    let slots: Vec<u32> = found.iter().map(|record| record.slot).collect();
    let stamps: Vec<u64> = found.iter().map(|record| record.stamp).collect();
    let keys: Vec<u8> = found.iter().flat_map(|record| record.owner.key()).collect();
    let parents: Vec<u8> = found
        .iter()
        .flat_map(|record| record.owner.parent())
        .collect();
    Ok((
        array(py, &slots, "uint32")?,
        key_array(py, &keys)?,
        key_array(py, &parents)?,
        array(py, &stamps, "uint64")?,
    ))
}

/// An array of keys, shape (rows, 32), of their bytes one after the other.
pub(crate) fn key_array<'py>(py: Python<'py>, keys: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let flat = frozen(&PyBytes::new(py, keys), "uint8", keys.len(), 0)?;
    flat.call_method1("reshape", ((keys.len() / 32, 32),))
}

/// Reads what the bytes on a disk depend on.
pub(crate) fn names_and_values(from: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let wrong = |given: &Bound<'_, PyAny>| {
        let given = shown(given);
        Failure::misuse(format!(
            "fields = {given}: pass a name and a value of each, as text"
        ))
    };
    let items = from.try_iter().map_err(|_| wrong(from))?;
    each("fields", from, items, |_, item| {
        Ok(item.extract().map_err(|_| wrong(&item))?)
    })
}
