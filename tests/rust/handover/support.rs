//! A little memory in pieces, holds, and two sides over loopback.

use blockyard_disk::Key;
use blockyard_handover::{
    Answer, Bell, Held, Hold, Identity, Landed, Limits, OfferId, OfferServer, Offers, Peer,
    PeerOptions, Pieces, RankMemory, Receiving, Secret, Sending, SharedOffers, Short, monotonic,
};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a block: of more than one call of the system, in pieces of unlike sizes.
pub(crate) const BYTES: usize = 700_000;
const PIECES: [usize; 4] = [1, 299_999, 300_000, 100_000];
pub(crate) const BOOT: u32 = 77;
pub(crate) const ID: OfferId = [7; 16];
/// Nothing here takes as long; a test that waits for it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Slots of memory.
#[derive(Debug)]
pub(crate) struct Slots {
    bytes: Mutex<Vec<Vec<u8>>>,
    /// Which piece is another's to write.
    pub(crate) foreign: Option<usize>,
    pub(crate) touched: AtomicUsize,
    pub(crate) left: AtomicBool,
}

impl Slots {
    pub(crate) fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self::empty(slots))
    }

    pub(crate) fn empty(slots: usize) -> Self {
        Self {
            bytes: Mutex::new(vec![vec![0; BYTES]; slots]),
            foreign: None,
            touched: AtomicUsize::new(0),
            left: AtomicBool::new(false),
        }
    }

    /// Slots full of what their numbers say.
    pub(crate) fn filled(slots: usize) -> Arc<Self> {
        let made = Self::new(slots);
        for slot in 0..slots {
            made.write(slot, &payload(slot));
        }
        made
    }

    pub(crate) fn write(&self, slot: usize, bytes: &[u8]) {
        self.bytes.lock().unwrap()[slot].copy_from_slice(bytes);
    }

    pub(crate) fn read(&self, slot: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[slot].clone()
    }

    fn touch(&self) {
        assert!(!self.left.load(Ordering::SeqCst), "it was given up");
        self.touched.fetch_add(1, Ordering::SeqCst);
    }
}

/// The parts of pieces that lie in a range: piece, and where in the block.
fn parts(from: usize, most: usize) -> Vec<(usize, usize, usize)> {
    let (mut found, mut first) = (Vec::new(), 0);
    for (piece, bytes) in PIECES.into_iter().enumerate() {
        let (begin, end) = (first.max(from), (first + bytes).min(from + most));
        if begin < end {
            found.push((piece, begin, end));
        }
        first += bytes;
    }
    found
}

impl Pieces for Slots {
    fn source(&self, at: usize, from: usize, most: usize, act: Sending<'_>) {
        self.touch();
        let bytes = self.bytes.lock().unwrap();
        let parts = parts(from, most).into_iter();
        let pieces: Vec<_> = parts
            .map(|(_, begin, end)| IoSlice::new(&bytes[at][begin..end]))
            .collect();
        act(&pieces);
        self.touch();
    }

    fn target(&self, at: usize, from: usize, most: usize, act: Receiving<'_>) {
        self.touch();
        let mut bytes = self.bytes.lock().unwrap();
        let mut parts = parts(from, most);
        if Some(parts[0].0) == self.foreign {
            act(&mut [], parts[0].2 - parts[0].1);
            return;
        }
        if let Some(stop) = parts.iter().position(|part| Some(part.0) == self.foreign) {
            parts.truncate(stop);
        }
        let mut rest = &mut bytes[at][from..];
        let mut pieces = Vec::new();
        for (_, begin, end) in parts {
            let (piece, more) = rest.split_at_mut(end - begin);
            pieces.push(IoSliceMut::new(piece));
            rest = more;
        }
        let all = pieces.iter().map(|piece| piece.len()).sum();
        act(&mut pieces, all);
        self.touch();
    }
}

pub(crate) fn payload(number: usize) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (number * 31 + at * 7 + at / 1000) as u8)
        .collect()
}

pub(crate) fn key(number: u8) -> Key {
    [number + 1; 32]
}

pub(crate) fn keys(numbers: std::ops::Range<u8>) -> Vec<Key> {
    numbers.map(key).collect()
}

/// A hold, and what a yard does with it.
#[derive(Debug)]
pub(crate) struct Pin {
    generations: Vec<AtomicU64>,
    held: AtomicBool,
    pub(crate) released: AtomicUsize,
}

impl Pin {
    /// The yard ends it: the generations first.
    pub(crate) fn end(&self) {
        if self.held.swap(false, Ordering::SeqCst) {
            self.raise();
        }
    }

    /// A yard that gives slots out as if nobody held them: what only the generation tells.
    pub(crate) fn raise(&self) {
        for one in &self.generations {
            one.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn releases(&self) -> usize {
        self.released.load(Ordering::SeqCst)
    }
}

impl Hold for Pin {
    fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    fn generation(&self, at: usize) -> Option<u64> {
        Some(self.generations.get(at)?.load(Ordering::SeqCst))
    }

    fn release(&self) {
        self.released.fetch_add(1, Ordering::SeqCst);
        self.end();
    }
}

/// Blocks whose keys, and slots, are these numbers.
pub(crate) fn held(numbers: std::ops::Range<u8>) -> (Held, Arc<Pin>) {
    let count = numbers.len();
    let generation = |at: usize| u64::from(BOOT) << 32 | (at as u64 + 1);
    let pin = Arc::new(Pin {
        generations: (0..count).map(|at| generation(at).into()).collect(),
        held: AtomicBool::new(true),
        released: AtomicUsize::new(0),
    });
    let parent = |number| {
        if number == 0 {
            [0; 32]
        } else {
            key(number - 1)
        }
    };
    let held = Held {
        keys: numbers.clone().map(key).collect(),
        parents: numbers.clone().map(parent).collect(),
        slots: numbers.map(u32::from).collect(),
        generations: (0..count).map(generation).collect(),
        hold: pin.clone(),
    };
    (held, pin)
}

pub(crate) fn identity(boot: u32, secret: Option<&[u8]>) -> Identity {
    Identity {
        boot,
        name: format!("engine {boot}"),
        fields: vec![
            ("model".into(), "Llama".into()),
            ("dtype".into(), "float16".into()),
        ],
        secret: secret.map(|bytes| Secret::new(bytes).unwrap()),
    }
}

pub(crate) const LEASE: Duration = Duration::from_secs(10);

pub(crate) fn offers() -> SharedOffers {
    Arc::new(Mutex::new(Offers::new(LEASE, Duration::from_secs(60))))
}

/// A prefill side: what it has, what it offers, and its server.
pub(crate) struct Prefill {
    pub(crate) offers: SharedOffers,
    pub(crate) memory: Arc<Slots>,
    pub(crate) server: OfferServer,
}

impl Prefill {
    pub(crate) fn new() -> Self {
        Self::with(identity(BOOT, None), Limits::default())
    }

    pub(crate) fn with(identity: Identity, limits: Limits) -> Self {
        let memory = Slots::filled(16);
        Self {
            memory: memory.clone(),
            ..Self::over(memory, identity, limits)
        }
    }

    /// One whose server reads this memory, and not its own.
    pub(crate) fn over(memory: Arc<dyn Pieces>, identity: Identity, limits: Limits) -> Self {
        let offers = offers();
        let rank = RankMemory {
            memory,
            bytes: BYTES as u32,
            slots: 16,
            said: b"where it is".to_vec(),
        };
        let server = OfferServer::open(
            Arc::clone(&offers),
            "127.0.0.1:0",
            identity,
            vec![rank],
            limits,
        );
        Self {
            offers,
            memory: Slots::new(0),
            server: server.unwrap(),
        }
    }

    pub(crate) fn offer(&self, id: OfferId, numbers: std::ops::Range<u8>) -> Arc<Pin> {
        let (held, pin) = held(numbers);
        self.offers
            .lock()
            .unwrap()
            .offer(id, held, monotonic())
            .unwrap();
        pin
    }

    pub(crate) fn options(&self) -> PeerOptions {
        options(self.server.address().to_string())
    }

    /// A decode side of it.
    pub(crate) fn peer(&self) -> Peer {
        Peer::new(self.options()).unwrap()
    }
}

pub(crate) fn options(address: String) -> PeerOptions {
    PeerOptions {
        address,
        identity: identity(5, None),
        rank: 0,
        bytes: BYTES as u32,
        timeout: Duration::from_secs(5),
        failures: 3,
        rest: Duration::from_millis(500),
        carrier: None,
        bell: Bell::default(),
    }
}

/// Waits until something is so.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The only answer of a peer.
pub(crate) fn answer(peer: &Peer) -> Answer {
    let mut answers = until("no answer", || {
        Some(peer.answers()).filter(|all| !all.is_empty())
    });
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// Takes an offer, all of whose blocks have these keys.
pub(crate) fn taken(peer: &Peer, id: OfferId, keys: &[Key]) -> usize {
    peer.take(1, id, BOOT, keys, 0);
    let answer = answer(peer);
    assert_eq!(answer.number, 1);
    answer.blocks
}

/// How a flight has ended.
pub(crate) fn landed(peer: &Peer, number: u64) -> (usize, Option<Short>) {
    all_landed(peer, &[number])[0]
}

/// How several have ended.
pub(crate) fn all_landed(peer: &Peer, numbers: &[u64]) -> Vec<(usize, Option<Short>)> {
    assert!(
        numbers.iter().all(|&number| peer.wait(number, LONG)),
        "one has not ended"
    );
    let landed = peer.poll(f64::NAN);
    let of = |&number| {
        let one = landed
            .iter()
            .find(|one: &&Landed| one.number == number)
            .unwrap();
        (one.good, one.short)
    };
    numbers.iter().map(of).collect()
}
