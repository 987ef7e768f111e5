//! The protocol by hand, for sides that do not keep to it.

use crate::support::{BYTES, LONG, key, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

pub(crate) const NONCE: u8 = 1;
pub(crate) const PROOF: u8 = 2;
pub(crate) const HELLO: u8 = 3;
pub(crate) const TAKE: u8 = 5;
pub(crate) const BLOCKS: u8 = 6;
pub(crate) const READ: u8 = 7;
pub(crate) const BLOCK: u8 = 8;
pub(crate) const SUM: u8 = 9;
pub(crate) const GONE: u8 = 10;
pub(crate) const RENEW: u8 = 11;
pub(crate) const DONE: u8 = 12;
pub(crate) const WHERE: u8 = 14;
pub(crate) const MEMORY: u8 = 15;
pub(crate) const SUMS: u8 = 16;

/// A frame of this kind, with these parts.
pub(crate) fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = (content.len() as u32).to_le_bytes().to_vec();
    bytes.extend([1, kind, 0, 0]);
    bytes.extend(content);
    bytes
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

pub(crate) fn nonce(role: u8, secret: bool, boot: u32) -> Vec<u8> {
    frame(
        NONCE,
        &[&[role, secret.into()], &boot.to_le_bytes(), &[3; 32]],
    )
}

/// What `support::identity` says of itself.
pub(crate) fn hello() -> Vec<u8> {
    let fields = [text("model"), text("Llama"), text("dtype"), text("float16")].concat();
    let numbers = [0_u32, BYTES as u32, 2].map(u32::to_le_bytes).concat();
    frame(HELLO, &[&text("by hand"), &numbers, &fields])
}

pub(crate) fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// One end of a connection.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    /// A decode side that was let in.
    pub(crate) fn welcomed(address: SocketAddr) -> Self {
        let mut raw = Self::to(address);
        raw.say(&nonce(1, false, 5));
        assert_eq!(raw.hear().unwrap().0, NONCE);
        raw.say(&hello());
        assert_eq!(raw.hear().unwrap().0, HELLO);
        raw
    }

    /// Says something; where the other side has closed, that is seen by what it says.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The next frame; `None` where the other side has closed.
    pub(crate) fn hear(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 8];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut content = vec![0; length as usize];
        self.0.read_exact(&mut content).ok()?;
        Some((head[5], content))
    }

    /// Whether the other side has closed, and has said nothing before.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    /// The bytes of a block.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// What a false prefill side does with a connection that it has welcomed.
pub(crate) type Script = dyn Fn(&mut Raw) + Send + Sync;

/// A false prefill side: each connection is played the same.
pub(crate) struct Prefiller {
    pub(crate) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefiller {
    /// One that keeps to the protocol until the hello.
    pub(crate) fn new(boot: u32, script: impl Fn(&mut Raw) + Send + Sync + 'static) -> Self {
        Self::raw(move |raw| {
            if raw.hear().is_none() {
                return;
            }
            raw.say(&nonce(0, false, boot));
            if raw.hear().is_some() {
                raw.say(&hello());
                script(raw);
            }
        })
    }

    pub(crate) fn raw(script: impl Fn(&mut Raw) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let script: Arc<Script> = Arc::new(script);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if seen.load(Ordering::SeqCst) {
                    return;
                }
                script(&mut Raw::new(stream.unwrap()));
            }
        });
        Self {
            address,
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Prefiller {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let thread = self.thread.take().unwrap();
        until("its script does not end", || {
            thread.is_finished().then_some(())
        });
        let done = thread.join();
        if !thread::panicking() {
            done.unwrap();
        }
    }
}

pub(crate) const SLOT: u32 = 4;
pub(crate) const GENERATION: u64 = 9;

/// Answers a take with blocks of these keys, each behind the one before it.
pub(crate) fn tell(raw: &mut Raw, count: u8) {
    let (kind, content) = raw.hear().unwrap();
    assert_eq!(kind, TAKE);
    let blocks: Vec<u8> = (0..count)
        .flat_map(|at| {
            let parent = if at == 0 { [0; 32] } else { key(at - 1) };
            told(key(at), parent)
        })
        .collect();
    let numbers = [numbers(&[0, 30_000]), numbers(&[count.into()])].concat();
    raw.say(&frame(BLOCKS, &[&content[..4], &numbers, &blocks]));
}

pub(crate) fn told(key: [u8; 32], parent: [u8; 32]) -> Vec<u8> {
    [
        &key[..],
        &parent,
        &SLOT.to_le_bytes(),
        &GENERATION.to_le_bytes(),
    ]
    .concat()
}

/// Waits for a read; returns its number, and which blocks.
pub(crate) fn asked(raw: &mut Raw) -> Option<([u8; 4], u32, u32)> {
    loop {
        let (kind, content) = raw.hear()?;
        let number = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
        match kind {
            READ | SUMS => return Some((content[..4].try_into().unwrap(), number(28), number(32))),
            RENEW | DONE => {}
            other => panic!("a frame of kind {other}"),
        }
    }
}

pub(crate) fn block(ask: [u8; 4], at: u32, slot: u32, length: u32, generation: u64) -> Vec<u8> {
    let numbers = numbers(&[at, slot, length]);
    frame(BLOCK, &[&ask, &numbers, &generation.to_le_bytes()])
}

pub(crate) fn sum(sum: u128, generation: u64) -> Vec<u8> {
    frame(SUM, &[&sum.to_le_bytes(), &generation.to_le_bytes()])
}
