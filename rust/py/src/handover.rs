//! Hand-over from a prefill engine to a decode engine: offers with leases, the server of their bytes, and a peer
//! that takes them.

use crate::buffers::{array, each};
use crate::error::{Failure, Outcome, Unavailable};
use crate::gil::wait;
use crate::held::HeldBlocks;
use crate::on_disk::{duration, key_array, names_and_values};
use crate::places::Addresses;
use blockyard_core as core;
use blockyard_guard::guarded;
use blockyard_handover as handover;
use handover::{
    End, Gone, Held, Hold, Identity, LEAST_SECRET, Limits, OfferId, RankMemory, Secret,
    SharedOffers, is_loopback,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keys, slots and generations, and a number.
pub(crate) type Blocks<'py, T> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, T);

/// Id, blocks, seconds that it is held, readers, and seconds that are left.
type HoldingRow<'py> = (Bound<'py, PyBytes>, usize, f64, usize, f64);

pub(crate) fn check_process(owner: u32, what: &str) -> Outcome<()> {
    if owner == process::id() {
        return Ok(());
    }
    let message =
        format!("process {owner} has {what}: a process that was forked must make its own");
    Err(Failure::misuse(message))
}

pub(crate) fn offer_id(given: &[u8]) -> Outcome<OfferId> {
    let bytes = given.len();
    let id = given.try_into();
    id.map_err(|_| Failure::misuse(format!("id has {bytes} bytes: an offer's has 16")))
}

/// Who a side is; without a secret its address is of this machine.
pub(crate) fn identity(
    address: (&str, &str),
    boot: u32,
    name: &str,
    fields: &Bound<'_, PyAny>,
    secret: Option<&[u8]>,
) -> PyResult<Identity> {
    let fields = match fields.cast::<PyMapping>() {
        Ok(mapping) => names_and_values(mapping.items()?.as_any())?,
        Err(_) => names_and_values(fields)?,
    };
    if boot == 0 {
        return Err(Failure::misuse("boot = 0: pass the cache's boot, a number from 1 on").into());
    }
    let text: usize = fields
        .iter()
        .map(|(name, value)| 4 + name.len() + value.len())
        .sum();
    if fields.len() > 256 || text + name.len() > 1 << 19 || name.len() > 256 {
        let message = format!(
            "name and fields have {} bytes in {} fields: 256 of a name, 256 fields and 512 KiB in all at most",
            text + name.len(),
            fields.len()
        );
        return Err(Failure::misuse(message).into());
    }
    let long = fields
        .iter()
        .find(|(name, value)| name.len().max(value.len()) > 65_535);
    if let Some((name, value)) = long {
        let (name, bytes) = (name.get(..32).unwrap_or(name), value.len());
        return Err(
            Failure::misuse(format!("field {name:?} has {bytes} bytes: 65535 at most")).into(),
        );
    }
    let secret = match secret {
        None if !is_loopback(address.1) => {
            let (name, address) = address;
            let message = format!(
                "{name} = {address:?}: without a secret it must be of this machine, as 127.0.0.1:PORT; give secret_file= for another one"
            );
            return Err(Failure::misuse(message).into());
        }
        None => None,
        Some(bytes) => Some(Secret::new(bytes).ok_or_else(|| {
            let bytes = bytes.len();
            Failure::misuse(format!(
                "secret has {bytes} bytes: pass {LEAST_SECRET} random ones or more"
            ))
        })?),
    };
    Ok(Identity {
        boot,
        name: name.to_owned(),
        fields,
        secret,
    })
}

/// A hold of a yard, for threads that do not attach to Python.
#[derive(Debug)]
struct YardHold(Arc<core::HeldBlocks>);

impl Hold for YardHold {
    fn is_held(&self) -> bool {
        self.0.is_held()
    }

    fn generation(&self, at: usize) -> Option<u64> {
        self.0.generation_now(at)
    }

    fn release(&self) {
        // A cache that is broken refuses each later call, and gives no slot out.
        let _ = self.0.release();
    }
}

/// Blocks that are offered to other engines, and for how long: each offer ends by this side's clock.
///
/// An offer ends when all of its readers are done or have refused, when the lease of the last one was
/// not renewed in time, when none has come in time, or when the yard has ended its hold. Then its
/// generations are raised, and its slots may be given out. Any thread may call it.
///
/// Time is in seconds of any clock; with an `OfferServer`, which ends leases, too, it is that of
/// `time.monotonic`.
///
/// Args:
///     lease: Seconds from one renewal of a reader to the next.
///     unread: Seconds that an offer waits for its first reader.
///
/// Raises:
///     Misuse: A number is out of range.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct Offers {
    offers: SharedOffers,
    process: u32,
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, handover::Offers> {
        lock(&self.offers)
    }

    /// Runs a verb attached where it ends nothing: else it may wait for a yard.
    fn enter<T: Send>(
        &self,
        py: Python<'_>,
        now: f64,
        act: impl FnOnce(&mut handover::Offers) -> T + Send,
    ) -> PyResult<T> {
        check_process(self.process, "these offers")?;
        if let Ok(mut offers) = self.offers.try_lock()
            && offers.is_quiet(now)
        {
            return Ok(act(&mut offers));
        }
        Ok(wait(py, || act(&mut self.lock())))
    }

    /// The same for one that ends offers.
    fn end_some<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut handover::Offers) -> T + Send,
    ) -> PyResult<T> {
        check_process(self.process, "these offers")?;
        Ok(wait(py, || act(&mut self.lock())))
    }
}

#[expect(clippy::disallowed_methods, reason = "it is not the yard's lock")]
fn lock(offers: &Mutex<handover::Offers>) -> MutexGuard<'_, handover::Offers> {
    offers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child no hold is dropped: they are the parent's.
impl Drop for Offers {
    fn drop(&mut self) {
        if self.process != process::id() {
            std::mem::forget(Arc::clone(&self.offers));
        }
    }
}

fn end(given: &str) -> Outcome<End> {
    Ok(match given {
        "aborted" => End::Aborted,
        "cleared" => End::Cleared,
        "closed" => End::Closed,
        "room" => End::Room,
        _ => {
            let message = format!(
                "why = {given:?}: must be \"aborted\", \"cleared\", \"closed\" or \"room\""
            );
            return Err(Failure::misuse(message));
        }
    })
}

fn gone(why: Gone) -> &'static str {
    match why {
        Gone::Ended => "ended",
        Gone::Cleared => "cleared",
        Gone::Reset => "reset",
        Gone::NoRoom => "no room",
        Gone::Soon => "soon",
    }
}

pub(crate) fn flat(keys: &[[u8; 32]]) -> Vec<u8> {
    keys.iter().flatten().copied().collect()
}

#[guarded]
#[pymethods]
impl Offers {
    #[new]
    #[pyo3(signature = (*, lease=10.0, unread=60.0))]
    fn new(lease: f64, unread: f64) -> PyResult<Self> {
        let (lease, unread) = (duration("lease", lease)?, duration("unread", unread)?);
        for (name, value) in [("lease", lease), ("unread", unread)] {
            if value.is_zero() || value.as_secs() > 1 << 31 {
                let message = format!("{name} = {value:?}: must be seconds, more than 0");
                return Err(Failure::misuse(message).into());
            }
        }
        Ok(Self {
            offers: Arc::new(Mutex::new(handover::Offers::new(lease, unread))),
            process: process::id(),
        })
    }

    /// Offers held blocks. From now on the offer releases the hold when it ends.
    ///
    /// Args:
    ///     offer: 16 random bytes, its id.
    ///     held: The blocks.
    ///     now: What time it is.
    ///
    /// Raises:
    ///     Misuse: The id has another length, or is that of an open offer; there are more than 65,536
    ///         blocks; or the process was forked. The hold goes on.
    fn offer(&self, py: Python<'_>, offer: &[u8], held: &HeldBlocks, now: f64) -> PyResult<()> {
        let id = offer_id(offer)?;
        let path = held.shared();
        let keys = |keys: &[core::Key]| keys.iter().map(|key| key.0).collect();
        let held = Held {
            keys: keys(path.keys()),
            parents: keys(path.parents()),
            slots: path.slots().into(),
            generations: path.generations().into(),
            hold: Arc::new(YardHold(path)),
        };
        let made = self.enter(py, now, |offers| offers.offer(id, held, now))?;
        Ok(made.map_err(|refused| Failure::misuse(refused.to_string()))?)
    }

    /// Promises an offer whose blocks are on their way: who takes it is told "soon" until `offer`.
    ///
    /// Args:
    ///     offer: 16 random bytes, its id.
    ///     now: What time it is. It ends as an offer does that nobody has read.
    ///
    /// Raises:
    ///     Misuse: The id has another length, or is that of another offer; or the process was forked.
    fn promise(&self, py: Python<'_>, offer: &[u8], now: f64) -> PyResult<()> {
        let id = offer_id(offer)?;
        let made = self.enter(py, now, |offers| offers.promise(id, now))?;
        Ok(made.map_err(|refused| Failure::misuse(refused.to_string()))?)
    }

    /// Returns whether an offer was promised, and has neither come nor ended.
    ///
    /// Args:
    ///     offer: Its id.
    ///
    /// Raises:
    ///     Misuse: As in `promise`.
    fn is_promised(&self, py: Python<'_>, offer: &[u8]) -> PyResult<bool> {
        let id = offer_id(offer)?;
        self.end_some(py, |offers| offers.is_promised(&id))
    }

    /// Gives a reader a lease, or begins it again. The server does so for readers elsewhere.
    ///
    /// Args:
    ///     offer: Its id.
    ///     reader: A random number that the reader has drawn.
    ///     now: What time it is.
    ///     first: The first block that it wants.
    ///
    /// Returns:
    ///     From that block on the keys, uint8 of shape (blocks, 32), the slots, uint32, and the
    ///     generations, uint64; and the seconds of the lease. Or why there are none: "ended",
    ///     "cleared", "no room" or "soon".
    ///
    /// Raises:
    ///     Misuse: The id has another length, or the process was forked.
    #[pyo3(signature = (offer, reader, now, *, first=0))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        offer: &[u8],
        reader: u64,
        now: f64,
        first: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = offer_id(offer)?;
        match self.enter(py, now, |offers| offers.take(&id, reader, first, now))? {
            Err(why) => Ok(gone(why).into_pyobject(py)?.into_any()),
            Ok(taken) => {
                let (held, first) = (taken.held, taken.first);
                let blocks: Blocks<'_, f64> = (
                    key_array(py, &flat(&held.keys[first..]))?,
                    array(py, &held.slots[first..], "uint32")?,
                    array(py, &held.generations[first..], "uint64")?,
                    taken.lease.as_secs_f64(),
                );
                Ok(blocks.into_pyobject(py)?.into_any())
            }
        }
    }

    /// Begins the lease of a reader again, if it has not ended.
    ///
    /// Args:
    ///     offer: Its id.
    ///     reader: The reader's number.
    ///     now: What time it is.
    ///
    /// Raises:
    ///     Misuse: As in `take`; so do the others.
    fn renew(&self, py: Python<'_>, offer: &[u8], reader: u64, now: f64) -> PyResult<()> {
        let id = offer_id(offer)?;
        self.enter(py, now, |offers| offers.renew(&id, reader, now))
    }

    /// A reader needs the offer no more; twice is once.
    ///
    /// Args:
    ///     offer: Its id.
    ///     reader: The reader's number.
    ///     now: What time it is.
    fn done(&self, py: Python<'_>, offer: &[u8], reader: u64, now: f64) -> PyResult<()> {
        let id = offer_id(offer)?;
        self.end_some(py, |offers| offers.done(&id, reader, now))
    }

    /// A reader does not take the offer, or needs it no more. One that has not come counts as come.
    ///
    /// Args:
    ///     offer: Its id.
    ///     reader: The reader's number.
    ///     now: What time it is.
    fn refuse(&self, py: Python<'_>, offer: &[u8], reader: u64, now: f64) -> PyResult<()> {
        let id = offer_id(offer)?;
        self.end_some(py, |offers| offers.refuse(&id, reader, now))
    }

    /// Ends an offer: its slots have other generations, and may be given out.
    ///
    /// Args:
    ///     offer: Its id.
    ///     why: "aborted", "cleared", "closed" or "room", for `stats` and the readers.
    ///
    /// Returns:
    ///     Whether it was open.
    fn end(&self, py: Python<'_>, offer: &[u8], why: &str) -> PyResult<bool> {
        let (id, why) = (offer_id(offer)?, end(why)?);
        self.end_some(py, |offers| offers.end(&id, why))
    }

    /// Ends all offers; returns how many there were.
    ///
    /// Args:
    ///     why: As in `end`.
    fn end_all(&self, py: Python<'_>, why: &str) -> PyResult<usize> {
        let why = end(why)?;
        self.end_some(py, |offers| offers.end_all(why))
    }

    /// Ends the oldest offer, as its room is needed; returns its id, or None where there is none.
    fn end_oldest<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let ended = self.end_some(py, handover::Offers::end_oldest)?;
        Ok(ended.map(|id| PyBytes::new(py, &id)))
    }

    /// Ends what is due, each offer at its own time; returns how many have ended.
    ///
    /// Args:
    ///     now: What time it is.
    fn sweep(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.enter(py, now, |offers| offers.sweep(now))
    }

    /// Returns how many offers and blocks are held, how many were made, and by what they have ended.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tally = self.end_some(py, |offers| offers.tally())?;
        let values = PyDict::new(py);
        values.set_item("offers_held", tally.held)?;
        values.set_item("offer_blocks_held", tally.blocks)?;
        values.set_item("offers_made", tally.made)?;
        for (why, count) in End::ALL.into_iter().zip(tally.ended) {
            let word = match why {
                End::Done => "done",
                End::Lease => "lease",
                End::Unread => "unread",
                End::Cleared => "cleared",
                End::Closed => "closed",
                End::Room => "room",
                End::Aborted => "aborted",
            };
            values.set_item(format!("offers_ended_by_{word}"), count)?;
        }
        Ok(values)
    }

    /// Returns what is held, the oldest first.
    ///
    /// Returns:
    ///     For each offer its id, its blocks, the seconds that it is held, the readers whose lease
    ///     runs, and the seconds after which it ends where nothing comes.
    fn holding<'py>(&self, py: Python<'py>) -> PyResult<Vec<HoldingRow<'py>>> {
        let holding = self.end_some(py, |offers| offers.holding())?.into_iter();
        let row = |one: handover::Holding| {
            let (age, left) = (one.age.as_secs_f64(), one.left.as_secs_f64());
            (
                PyBytes::new(py, &one.id),
                one.blocks,
                age,
                one.readers,
                left,
            )
        };
        Ok(holding.map(row).collect())
    }
}

/// The server of offers, with threads of its own: it tells readers what is held, and sends the bytes.
///
/// It gives out what was offered, to who has proved the secret, and nothing else. Bytes are not
/// encrypted. It ends leases in time, too. Any thread may call it.
///
/// Args:
///     offers: What is offered.
///     listen: `host:port`; port 0 is a free one. Without a secret the host is of this machine.
///     boot: The cache's `boot`, which tells readers of this process from those of one before.
///     name: What this side is called in logs of the other.
///     fields: Names and values of what the bytes depend on: model, weights, dtype, layout and the
///         like. A reader whose fields differ is refused.
///     planes: For each rank, the planes of the tier that the blocks are in, as `StoreLane.submit_up`
///         has them. They stay where they are until it is closed.
///     blocks: Slots of that tier.
///     secret: What both sides know, 16 bytes or more.
///     memory: Where the planes are, for a carrier that reads memory by itself, in its own words of up
///         to 512 KiB. It is told to who has proved the secret and asks for it.
///
/// Raises:
///     Misuse: A value is out of range, or the address is not of this machine and there is no secret.
///     Unavailable: The system refuses, as where the port is taken.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct OfferServer {
    server: handover::OfferServer,
    process: u32,
}

#[guarded]
#[pymethods]
impl OfferServer {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (offers, listen, *, boot, name, fields, planes, blocks, secret=None, memory=None))]
    fn new(
        py: Python<'_>,
        offers: &Offers,
        listen: &str,
        boot: u32,
        name: &str,
        fields: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        blocks: u32,
        secret: Option<&[u8]>,
        memory: Option<&[u8]>,
    ) -> PyResult<Self> {
        check_process(offers.process, "these offers")?;
        let identity = identity(("listen", listen), boot, name, fields, secret)?;
        if let Some(bytes) = memory.map(<[u8]>::len).filter(|&bytes| bytes > 1 << 19) {
            let message = format!("memory has {bytes} bytes: 512 KiB at most");
            return Err(Failure::misuse(message).into());
        }
        let wrong = |_| Failure::misuse("planes: pass the planes of each rank");
        let ranks = each(
            "planes",
            planes,
            planes.try_iter().map_err(wrong)?,
            |_, one| {
                let (found, bytes) = Addresses::all(&one, blocks)?;
                Ok(RankMemory {
                    memory: Arc::new(found),
                    bytes,
                    slots: blocks,
                    said: memory.unwrap_or_default().to_vec(),
                })
            },
        )?;
        if ranks.is_empty() || blocks == 0 {
            let (ranks, message) = (ranks.len(), "must be 1 or more of each");
            return Err(
                Failure::misuse(format!("{ranks} ranks of {blocks} blocks: {message}")).into(),
            );
        }
        let shared = Arc::clone(&offers.offers);
        let limits = Limits::default();
        let opened = wait(py, || {
            handover::OfferServer::open(shared, listen, identity, ranks, limits)
        });
        let server = opened.map_err(|error| {
            Unavailable::new_err(format!(
                "listen = {listen:?}: {error}: give another address"
            ))
        })?;
        Ok(Self {
            server,
            process: process::id(),
        })
    }

    /// Where it listens: `host:port`.
    #[getter]
    fn address(&self) -> String {
        self.server.address().to_string()
    }

    /// Returns what it has done, and what it is at now. Any thread may ask.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        check_process(self.process, "this server's threads")?;
        let served = self.server.served();
        let values = PyDict::new(py);
        for (name, value) in [
            ("connections", served.connections),
            ("accepted", served.accepted),
            ("refused", served.refused),
            ("unproved", served.unproved),
            ("differing", served.differing),
            ("faulty", served.faulty),
            ("sent_blocks", served.blocks),
            ("sent_bytes", served.bytes),
            ("stale", served.stale),
            ("gone", served.gone),
        ] {
            values.set_item(name, value)?;
        }
        Ok(values)
    }

    /// Whether it serves nothing more. Any thread may ask.
    #[getter]
    fn closed(&self) -> bool {
        self.process != process::id() || self.server.is_closed()
    }

    /// Ends all connections. When it returns, no byte of the planes is read any more.
    ///
    /// Args:
    ///     patience: Seconds that it waits for its threads.
    ///
    /// Returns:
    ///     Whether all have ended; the others do so by their own deadlines.
    ///
    /// Raises:
    ///     Misuse: `patience` is no such number.
    #[pyo3(signature = (*, patience=1.0))]
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<bool> {
        let patience = duration("patience", patience)?;
        if self.process != process::id() {
            return Ok(true);
        }
        Ok(wait(py, || self.server.close(patience)))
    }
}
