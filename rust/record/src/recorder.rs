//! The recorder: a bounded queue, and the thread that empties it into the file.

use crate::error::{Error, Result};
use crate::file;
use crate::frame::{Header, Request, seal};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Requests that wait to be written, at most.
pub const MOST_REQUESTS: usize = 1 << 14;

/// Bytes of them, at most.
pub const MOST_BYTES: usize = 16 << 20;

/// How often the thread looks. Nobody wakes it, as that would be a call of the system for each request.
const TICK: Duration = Duration::from_millis(25);

/// Bytes that are written in one call, about.
const BATCH: usize = 1 << 20;

/// A request as its begin has seen it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Nanoseconds from the recorder's start to its arrival.
    pub arrived: u64,
    /// Tokens of its prompt.
    pub prompt: u64,
}

/// What became of the requests so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Those that the system has taken.
    pub recorded: u64,
    /// Those that are lost to the file, for want of room in the queue or on the disk.
    pub dropped: u64,
}

/// Writes requests into a file. Any thread may use it.
#[derive(Debug)]
pub struct Recorder {
    queue: SyncSender<Vec<u8>>,
    shared: Arc<Shared>,
    writer: JoinHandle<()>,
    start: Instant,
    /// Whether arrivals and ends are told one by one, and not by a cache's begins.
    told: AtomicBool,
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait.
    waiting: AtomicUsize,
    recorded: AtomicU64,
    dropped: AtomicU64,
    closing: AtomicBool,
    trouble: OnceLock<String>,
}

impl Recorder {
    /// Opens a recording, or begins one, of blocks of so many tokens.
    ///
    /// # Errors
    /// The path is no file that can be written, or holds something else, or is written by another.
    pub fn open(path: &Path, block_size: u32) -> Result<Self> {
        let file = file::open(path, block_size)?;
        let (start, now) = (Instant::now(), SystemTime::now());
        let began = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            block_size,
            began: u64::try_from(began.as_nanos()).unwrap_or(u64::MAX),
        };
        let (queue, incoming) = sync_channel(MOST_REQUESTS);
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            file,
            header: header.bytes(),
            torn: true,
            incoming,
            shared: Arc::clone(&shared),
        };
        let thread = thread::Builder::new().name("blockyard-record".to_owned());
        let writer = thread.spawn(move || writer.run());
        let writer = writer.map_err(|source| Error::System {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            queue,
            shared,
            writer,
            start,
            told: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    /// Nanoseconds since it was opened.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// From now on arrivals and ends are told one by one: begins are not seen any more.
    pub fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// Sees a begin of a prompt; None where arrivals are told.
    pub fn see(&self, prompt: u64) -> Option<Seen> {
        (!self.told.load(Ordering::Relaxed)).then(|| Seen {
            arrived: self.now(),
            prompt,
        })
    }

    /// Hands over a request that ends now, with the keys of the full blocks of its prompt. Never waits.
    pub fn write<'a>(
        &self,
        seen: Seen,
        answer: u64,
        keys: impl ExactSizeIterator<Item = &'a [u8; 32]>,
    ) {
        // What ends when no more is to be recorded is not lost.
        if self.shared.closing.load(Ordering::Relaxed) {
            return;
        }
        let Seen { arrived, prompt } = seen;
        let ended = self.now();
        let request = Request {
            arrived,
            ended,
            prompt,
            answer,
        };
        let bytes = crate::frame::REQUEST.saturating_add(keys.len().saturating_mul(8));
        let shared = &*self.shared;
        let before = shared.waiting.fetch_add(bytes, Ordering::Relaxed);
        let room = before.saturating_add(bytes) <= MOST_BYTES;
        if !(room && self.queue.try_send(request.frame(keys)).is_ok()) {
            shared.waiting.fetch_sub(bytes, Ordering::Relaxed);
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of the requests so far.
    pub fn counts(&self) -> Counts {
        Counts {
            recorded: self.shared.recorded.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }

    /// What the system said when it first refused to write.
    pub fn trouble(&self) -> Option<&str> {
        self.shared.trouble.get().map(String::as_str)
    }

    /// Takes no more requests, and waits for those that wait to be written, but no longer than that.
    /// Returns whether all are.
    pub fn close(&self, patience: Duration) -> bool {
        self.end();
        // A process that was forked has no such thread.
        if self.process != std::process::id() {
            return false;
        }
        let limit = Instant::now() + patience;
        while !self.writer.is_finished() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        self.writer.is_finished()
    }

    fn end(&self) {
        self.shared.closing.store(true, Ordering::Release);
        self.writer.thread().unpark();
    }
}

/// What waits is still written, as long as the process lives.
impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

struct Writer {
    file: File,
    header: Vec<u8>,
    /// Whether a header comes next: at the start, and behind what a write has torn.
    torn: bool,
    incoming: Receiver<Vec<u8>>,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self) {
        let mut batch = Vec::new();
        loop {
            // Looked at first: what came before it is in the queue then.
            let closing = self.shared.closing.load(Ordering::Acquire);
            let requests = self.take(&mut batch);
            if requests > 0 || self.torn && self.shared.trouble.get().is_none() {
                self.write(&batch, requests);
            } else if closing {
                return;
            } else {
                thread::park_timeout(TICK);
            }
            batch.clear();
        }
    }

    /// Takes what waits, up to a batch; returns how many requests.
    fn take(&self, batch: &mut Vec<u8>) -> u64 {
        let mut requests = 0;
        if self.torn {
            batch.extend(&self.header);
        }
        while batch.len() < BATCH
            && let Ok(mut frame) = self.incoming.try_recv()
        {
            seal(&mut frame);
            batch.extend(&frame);
            requests += 1;
        }
        requests
    }

    fn write(&mut self, batch: &[u8], requests: u64) {
        let done = self.file.write_all(batch);
        let bytes = batch.len() - if self.torn { self.header.len() } else { 0 };
        self.shared.waiting.fetch_sub(bytes, Ordering::Relaxed);
        self.torn = done.is_err();
        let counted = match done {
            Ok(()) => &self.shared.recorded,
            Err(error) => {
                self.shared.trouble.get_or_init(|| error.to_string());
                &self.shared.dropped
            }
        };
        counted.fetch_add(requests, Ordering::Relaxed);
    }
}
