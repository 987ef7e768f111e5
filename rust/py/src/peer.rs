//! A peer: offers of one prefiller are taken, and their blocks received.

use crate::buffers::{array, integers};
use crate::error::{Failure, Outcome, Unavailable};
use crate::gil::wait;
use crate::handover::{Blocks, check_process, flat, identity, offer_id};
use crate::on_disk::{duration, key_array, rows};
use crate::places::Addresses;
use crate::store::{ends, word};
use blockyard_guard::guarded;
use blockyard_handover as handover;
use handover::{Known, PeerOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::process;
use std::sync::Arc;

/// Boots, slots and generations.
type Places<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);
/// Rung by peers when they have ended a flight, which their `poll` returns from then on.
///
/// Who finds it rung no more than before the last polls need poll none of them. Any thread may look.
#[pyclass(frozen, module = "blockyard._core")]
pub(crate) struct Bell(handover::Bell);

#[guarded]
#[pymethods]
impl Bell {
    #[new]
    fn new() -> Self {
        Self(handover::Bell::default())
    }

    /// Takes what time it is for all its peers, as their `poll`; returns how often it was rung.
    ///
    /// Args:
    ///     now: As for `Peer.poll`.
    fn look(&self, now: f64) -> u64 {
        self.0.look(now)
    }
}

/// One prefiller, as a rank of a decoder sees it: it takes offers, and has their blocks received.
///
/// It has a thread of its own, which begins with the first call that needs it and never holds the
/// GIL. A block counts as landed only if its key, slot, generation, length and sum are those of the
/// offer. No call waits for the other side. Any thread may call it.
///
/// Args:
///     address: `host:port` of the other side. Without a secret the host is of this machine.
///     boot: This cache's `boot`.
///     name: As in `OfferServer`.
///     fields: As there.
///     rank: Whose bytes it wants.
///     block_bytes: Bytes of a block on this rank.
///     secret: As there.
///     timeout: Seconds that the other side may take for a meeting, an answer, or a block of up to
///         1 MiB.
///     failures: Failures in a row after which it is left alone.
///     rest: Seconds for which that is so at first; twice as long after each try that fails.
///     carrier: What brings the bytes in place of the connection, if anything does. Then a flight waits
///         for `land`, and the other side is asked for sums alone, and for `memory`.
///     bell: What it rings; None for one that nobody else has.
///
/// Raises:
///     Misuse: A value is out of range, or the address is not of this machine and there is no secret.
///     Unavailable: The system has no descriptor.
#[pyclass(frozen, subclass, module = "blockyard._core")]
pub(crate) struct Peer {
    peer: handover::Peer,
    process: u32,
}

impl Peer {
    fn check(&self) -> Outcome<()> {
        check_process(self.process, "this peer's thread")
    }
}

#[guarded]
#[pymethods]
impl Peer {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (address, *, boot, name, fields, rank, block_bytes, secret=None, timeout=5.0, failures=3,
        rest=0.5, carrier=None, bell=None))]
    fn new(
        address: &str,
        boot: u32,
        name: &str,
        fields: &Bound<'_, PyAny>,
        rank: u32,
        block_bytes: u32,
        secret: Option<&[u8]>,
        timeout: f64,
        failures: u32,
        rest: f64,
        carrier: Option<String>,
        bell: Option<&Bell>,
    ) -> PyResult<Self> {
        if block_bytes == 0 || block_bytes > 1 << 31 {
            let message = format!("block_bytes = {block_bytes}: must be 1 to 2^31");
            return Err(Failure::misuse(message).into());
        }
        let timeout = duration("timeout", timeout)?;
        if timeout.is_zero() || timeout.as_secs() > 3600 {
            let message =
                format!("timeout = {timeout:?}: must be more than 0 seconds, an hour at most");
            return Err(Failure::misuse(message).into());
        }
        let options = PeerOptions {
            address: address.to_owned(),
            identity: identity(("address", address), boot, name, fields, secret)?,
            rank,
            bytes: block_bytes,
            timeout,
            failures,
            rest: duration("rest", rest)?,
            carrier,
            bell: bell.map(|bell| bell.0.clone()).unwrap_or_default(),
        };
        let made = handover::Peer::new(options);
        Ok(Self {
            peer: made.map_err(|error| {
                let help = "name fewer peers, or let the process have more descriptors";
                Unavailable::new_err(format!("peer {address:?}: {error}: {help}"))
            })?,
            process: process::id(),
        })
    }

    /// Asks for an offer. `taken` says what has become of it.
    ///
    /// Args:
    ///     number: The caller's number for it.
    ///     offer: Its id.
    ///     boot: That of the offer: of another one it is gone.
    ///     keys: The request's own keys, uint8 of shape (blocks, 32). Nothing else is taken.
    ///     now: What time it is, as for `poll`.
    ///     first: The first of these that is wanted.
    ///
    /// Raises:
    ///     Misuse: The id has another length, the keys are something else, there are more than 65,536
    ///         of them, or the process was forked.
    #[pyo3(signature = (number, offer, boot, keys, now, *, first=0))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn take(
        &self,
        number: u64,
        offer: &[u8],
        boot: u32,
        keys: &Bound<'_, PyAny>,
        now: f64,
        first: usize,
    ) -> PyResult<()> {
        self.check()?;
        let (id, keys) = (offer_id(offer)?, rows("keys", keys)?);
        if first > handover::MOST_BLOCKS {
            let message = format!("first = {first}: an offer has 65536 blocks at most");
            return Err(Failure::misuse(message).into());
        }
        self.peer.is_shut(now);
        self.peer.take(number, id, boot, &keys, first);
        Ok(())
    }

    /// Returns what has become of takes since the last call, each once.
    ///
    /// Returns:
    ///     The caller's number, how many leading keys are to be had, from the first key on, and "";
    ///     or 0 and why: "ended", "cleared", "reset", "no room", "soon", "other keys", "failed", "given
    ///     up", or "wrong: …" with what is wrong about the offer.
    ///
    /// Raises:
    ///     Misuse: The process was forked: so do all others, but `give_up`, `closed` and `close`.
    fn taken(&self) -> PyResult<Vec<(u64, usize, String)>> {
        self.check()?;
        let answers = self.peer.answers().into_iter();
        Ok(answers
            .map(|one| (one.number, one.blocks, one.why))
            .collect())
    }

    /// Returns what is known of an offer that was taken here, for the peers of other ranks.
    ///
    /// Returns:
    ///     Keys, slots, generations and the number of its reader, from the first block that was wanted
    ///     on; None where it is not open here.
    ///
    /// Raises:
    ///     Misuse: The id has another length.
    fn blocks<'py>(&self, py: Python<'py>, offer: &[u8]) -> PyResult<Option<Blocks<'py, u64>>> {
        self.check()?;
        let Some((known, reader)) = self.peer.known(&offer_id(offer)?) else {
            return Ok(None);
        };
        Ok(Some((
            key_array(py, &flat(&known.keys))?,
            array(py, &known.slots, "uint32")?,
            array(py, &known.generations, "uint64")?,
            reader,
        )))
    }

    /// Tells it of an offer that another rank's peer has taken: it reads, and renews the same lease.
    ///
    /// Args:
    ///     offer: Its id.
    ///     boot: That of the offer.
    ///     keys: As `blocks` of the other one returns them; so are the next ones.
    ///     slots: As there.
    ///     generations: As there.
    ///     reader: As there.
    ///     first: The first block of the offer that is meant.
    ///
    /// Raises:
    ///     Misuse: The arguments do not have as many blocks, or more than 65,536; or as in `take`.
    #[pyo3(signature = (offer, boot, keys, slots, generations, reader, *, first=0))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn offer(
        &self,
        offer: &[u8],
        boot: u32,
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        generations: &Bound<'_, PyAny>,
        reader: u64,
        first: usize,
    ) -> PyResult<()> {
        self.check()?;
        let (id, keys) = (offer_id(offer)?, rows("keys", keys)?);
        let slots: Vec<u32> = integers("slots", slots)?;
        let generations: Vec<u64> = integers("generations", generations)?;
        let blocks = (keys.len(), slots.len(), generations.len());
        if blocks.1 != blocks.0 || blocks.2 != blocks.0 {
            let message = format!("{blocks:?} keys, slots and generations: pass as many");
            return Err(Failure::misuse(message).into());
        }
        if first.saturating_add(blocks.0) > handover::MOST_BLOCKS {
            let message = format!(
                "{} blocks from {first} on: an offer has 65536 at most",
                blocks.0
            );
            return Err(Failure::misuse(message).into());
        }
        let known = Known {
            boot,
            first,
            keys,
            slots,
            generations,
        };
        self.peer.learn(id, reader, known);
        Ok(())
    }

    /// Returns which of these keys an offer has that was taken here: bool, shape (blocks,).
    ///
    /// Raises:
    ///     Misuse: The keys are something else.
    fn has<'py>(&self, py: Python<'py>, keys: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.check()?;
        let has = self.peer.has(&rows("keys", keys)?);
        let has: Vec<u8> = has.into_iter().map(u8::from).collect();
        array(py, &has, "uint8")?.call_method1("view", ("bool",))
    }

    /// Whether `has` may name a block: an offer that was taken here has some.
    #[getter]
    fn offering(&self) -> PyResult<bool> {
        self.check()?;
        Ok(self.peer.is_offering())
    }

    /// Whether a flight would fail at once, as the other side rests; it takes what time it is, too.
    ///
    /// Args:
    ///     down: Whether it would go there, which nothing does.
    ///     now: As for `poll`.
    fn shut(&self, down: bool, now: f64) -> PyResult<bool> {
        self.check()?;
        Ok(self.peer.is_shut(now) || down)
    }

    /// Takes blocks to receive. Their memory is the flight's until it has landed or was given up.
    ///
    /// Args:
    ///     keys: The keys that are wanted. Behind the first one that no offer here has they are missing.
    ///     planes: As in `StoreLane.submit_up`.
    ///     destinations: As there.
    ///     now: As there.
    ///
    /// Returns:
    ///     The number of the flight. It has failed at once where the other side rests.
    ///
    /// Raises:
    ///     Misuse: The arguments do not have as many blocks, or the process was forked.
    fn submit_up(
        &self,
        keys: &Bound<'_, PyAny>,
        planes: &Bound<'_, PyAny>,
        destinations: &Bound<'_, PyAny>,
        now: f64,
    ) -> PyResult<u64> {
        self.check()?;
        let keys = rows("keys", keys)?;
        let destinations: Vec<u32> = integers("destinations", destinations)?;
        if keys.len() != destinations.len() {
            let message = format!(
                "{} keys, and {} destinations: pass as many",
                keys.len(),
                destinations.len()
            );
            return Err(Failure::misuse(message).into());
        }
        let memory = Addresses::new(planes, destinations, self.peer.options().bytes)?;
        self.peer.is_shut(now);
        Ok(self.peer.submit(&keys, Arc::new(memory)))
    }

    /// Returns what has ended since the last call: number, good blocks, and "" or why no more.
    ///
    /// It takes what time it is. The words are "failed", "corrupt", "missing" and "given up". It never waits.
    ///
    /// Args:
    ///     now: Seconds of any clock. Rests end by it.
    fn poll(&self, now: f64) -> PyResult<Vec<(u64, usize, &'static str)>> {
        self.check()?;
        Ok(ends(self.peer.poll(now)))
    }

    /// Waits until a flight has ended; `poll` says how.
    ///
    /// Args:
    ///     number: Its number.
    ///     seconds: How long it waits at most.
    ///
    /// Returns:
    ///     Whether it has ended.
    ///
    /// Raises:
    ///     Misuse: `seconds` is no such number.
    fn wait(&self, py: Python<'_>, number: u64, seconds: f64) -> PyResult<bool> {
        self.check()?;
        let patience = duration("seconds", seconds)?;
        Ok(wait(py, || self.peer.wait(number, patience)))
    }

    /// Returns where the memory of the other side is, in its carrier's words, and the boot of who said so.
    ///
    /// Returns:
    ///     None before the first connection, and without `carrier`.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Option<(u32, Bound<'py, PyBytes>)>> {
        self.check()?;
        let memory = self.peer.memory();
        let memory = memory.filter(|_| self.peer.options().carrier.is_some());
        Ok(memory.map(|(boot, said)| (boot, PyBytes::new(py, &said))))
    }

    /// A descriptor that can be read when there is something to do for the carrier; `begun` clears it.
    #[getter]
    fn signal(&self) -> i32 {
        self.peer.signal()
    }

    /// Returns the flights that were taken since the last call and have not ended, for the carrier.
    fn begun(&self) -> PyResult<Vec<u64>> {
        self.check()?;
        Ok(self.peer.begun())
    }

    /// Returns what a flight reads: for each block the boot of its offer, its slot and its generation.
    ///
    /// Args:
    ///     number: Its number.
    ///
    /// Returns:
    ///     Arrays of shape (blocks,); the blocks behind the first missing one are left out, and all are
    ///     where the flight has ended.
    fn wanted<'py>(&self, py: Python<'py>, number: u64) -> PyResult<Places<'py>> {
        self.check()?;
        let wanted = self.peer.wanted(number);
        let boots: Vec<u32> = wanted.iter().map(|one| one.0).collect();
        let slots: Vec<u32> = wanted.iter().map(|one| one.1).collect();
        let generations: Vec<u64> = wanted.iter().map(|one| one.2).collect();
        Ok((
            array(py, &boots, "uint32")?,
            array(py, &slots, "uint32")?,
            array(py, &generations, "uint64")?,
        ))
    }

    /// Takes blocks of a flight that its carrier has read into staging: each is checked, and copied.
    ///
    /// Args:
    ///     number: The flight.
    ///     row: The first of its blocks that is meant.
    ///     planes: Where block 0 of the staging is, as in `submit_up`.
    ///     generations: Those that the slots of the other side had after all these bytes were read.
    ///
    /// Returns:
    ///     Whether the staging is not needed any more. Else the sums of the blocks, or blocks before
    ///     them, are not there yet: call it again.
    ///
    /// Raises:
    ///     Misuse: The planes are something else.
    fn land(
        &self,
        py: Python<'_>,
        number: u64,
        row: usize,
        planes: &Bound<'_, PyAny>,
        generations: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.check()?;
        let generations: Vec<u64> = integers("generations", generations)?;
        let slots = (0..generations.len() as u32).collect();
        let staging = Addresses::new(planes, slots, self.peer.options().bytes)?;
        Ok(wait(py, || {
            self.peer.land(number, row, &staging, &generations)
        }))
    }

    /// Ends a flight as far as it has come, as its carrier has failed. That is a failure of the peer.
    ///
    /// Args:
    ///     number: The flight.
    ///     why: What `why` says of it.
    fn fail(&self, number: u64, why: &str) -> PyResult<()> {
        self.check()?;
        self.peer.fail(number, why);
        Ok(())
    }

    /// Gives a flight up: when it returns, no byte of its memory is written any more.
    ///
    /// It waits for no socket. What still comes is thrown away.
    ///
    /// Args:
    ///     number: Its number.
    ///     late: Whether the other side did not answer in time, which is a failure of it.
    #[pyo3(signature = (number, *, late=false))]
    fn give_up(&self, py: Python<'_>, number: u64, late: bool) {
        if self.process == process::id() {
            wait(py, || self.peer.give_up(number, late));
        }
    }

    /// One request here has what it needs of an offer: the other side learns it, behind earlier flights.
    ///
    /// Raises:
    ///     Misuse: The id has another length, or the process was forked.
    fn done(&self, offer: &[u8]) -> PyResult<()> {
        self.check()?;
        self.peer.done(offer_id(offer)?);
        Ok(())
    }

    /// One request here does not take an offer, or needs it no more.
    ///
    /// Args:
    ///     offer: Its id, whether it was taken or not.
    ///     why: For the other side, without secrets.
    ///
    /// Raises:
    ///     Misuse: As in `done`.
    fn refuse(&self, offer: &[u8], why: &str) -> PyResult<()> {
        self.check()?;
        self.peer.refuse(offer_id(offer)?, why);
        Ok(())
    }

    /// Returns "well", "resting" or "trying". Any thread may ask.
    fn state(&self) -> PyResult<&'static str> {
        self.check()?;
        Ok(word(self.peer.state().condition))
    }

    /// Returns what it has done, and what it is at now. Any thread may ask.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check()?;
        let (counts, state) = (self.peer.counts(), self.peer.state());
        let bytes = u64::from(self.peer.options().bytes);
        let values = PyDict::new(py);
        for (name, value) in [
            ("got_blocks", counts.got),
            ("got_bytes", counts.got * bytes),
            ("offers_taken", counts.taken),
            ("offers_gone", counts.gone),
            ("stale", counts.stale),
            ("corrupt", counts.corrupt),
            ("missing", counts.missing),
            ("failed", counts.failed),
            ("given_up", counts.given_up),
            ("connected", counts.connected),
            ("rests", counts.rests),
            ("in_flight", state.flying as u64),
            ("offers_open", state.offers as u64),
            ("leases", state.leases as u64),
        ] {
            values.set_item(name, value)?;
        }
        Ok(values)
    }

    /// Returns why the other side has failed last; "" where it never has. Any thread may ask.
    fn why(&self) -> PyResult<String> {
        self.check()?;
        Ok(self.peer.why())
    }

    /// Whether it takes nothing more. Any thread may ask.
    #[getter]
    fn closed(&self) -> bool {
        self.process != process::id() || self.peer.is_closed()
    }

    /// Ends all flights, and tells the other side that its offers are done, where that goes at once.
    ///
    /// Args:
    ///     patience: Seconds that it waits for its thread.
    ///
    /// Returns:
    ///     Whether that has ended; else it does so by its own deadline, and touches no memory.
    ///
    /// Raises:
    ///     Misuse: `patience` is no such number.
    #[pyo3(signature = (*, patience=1.0))]
    fn close(&self, py: Python<'_>, patience: f64) -> PyResult<bool> {
        let patience = duration("patience", patience)?;
        if self.process != process::id() {
            return Ok(true);
        }
        Ok(wait(py, || self.peer.close(patience)))
    }
}
