//! A socket between two sides. Nothing waits in it but `wait`, which has a deadline, so that a thread never hangs in
//! a call that somebody else would have to end.

use crate::frame::{Frame, HEAD, Wrong, head};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read at once where a frame is expected.
const SOME: usize = 4096;

/// Bytes that one step adds to what is kept of a frame.
const STEP: usize = 64 << 10;

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("it has closed the connection")]
    Closed,
    #[error("it has not said anything in time")]
    Late,
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error("it has said something that nobody asked for")]
    Unasked,
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Wakes a thread that waits for a socket.
#[derive(Debug)]
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Ok(Self(eventfd(0, flags)?))
    }

    /// It can be read while it is awake.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        // Where it is full the thread is awake already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Waits for descriptors, and for the wake; returns which of the descriptors are ready.
pub(crate) fn wait_for<const N: usize>(
    these: [(&dyn AsFd, PollFlags); N],
    wake: Option<&Wake>,
    until: Instant,
) -> io::Result<[bool; N]> {
    let left = until.saturating_duration_since(Instant::now());
    let mut all: Vec<PollFd<'_>> = Vec::with_capacity(N + 1);
    for (one, flags) in &these {
        all.push(PollFd::from_borrowed_fd(one.as_fd(), *flags));
    }
    if let Some(wake) = wake {
        all.push(PollFd::new(&wake.0, PollFlags::IN));
    }
    // Rounded up, so that nobody spins before the end.
    let left = left + Duration::from_micros(50);
    let left = Timespec {
        tv_sec: left.as_secs().min(1 << 30).cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(&mut all, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = [false; N];
    for (ready, one) in ready.iter_mut().zip(&all) {
        *ready = !one.revents().is_empty();
    }
    if let Some(wake) = wake
        && !all[N].revents().is_empty()
    {
        wake.clear();
    }
    Ok(ready)
}

/// A connection, what has come of it and was not read yet, and what is to be sent.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Arc<TcpStream>,
    inbox: Vec<u8>,
    /// How much of the inbox was read.
    at: usize,
    /// Frames that go with the next call that sends.
    pub(crate) outbox: Vec<u8>,
    /// How much of the outbox was sent.
    sent: usize,
    /// Bytes that a frame may have.
    pub(crate) most: usize,
}

impl Link {
    pub(crate) fn new(stream: Arc<TcpStream>, most: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
            at: 0,
            outbox: Vec::new(),
            sent: 0,
            most,
        })
    }

    pub(crate) fn say(&mut self, frame: &Frame) {
        frame.put(&mut self.outbox);
    }

    pub(crate) fn has_to_send(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// The next frame, if all of it has come. Kinds that are unknown are passed over.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame>, Lost> {
        while let Some((first, rest)) = self.inbox[self.at..].split_first_chunk() {
            let (length, kind) = head(*first, self.most)?;
            let Some(content) = rest.get(..length) else {
                break;
            };
            let frame = Frame::read(kind, content)?;
            self.at += HEAD + length;
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }

    /// Whether a part of a frame has come.
    pub(crate) fn has_part(&self) -> bool {
        self.at < self.inbox.len()
    }

    /// Reads what is there for the next frames; returns whether there was anything.
    pub(crate) fn fill(&mut self) -> Result<bool, Lost> {
        self.inbox.drain(..self.at);
        self.at = 0;
        let have = self.inbox.len();
        // Room for as much as a head says only when that has been compared with the limit, and then by steps.
        let more = match self.inbox.first_chunk() {
            Some(first) => (HEAD + head(*first, self.most)?.0)
                .saturating_sub(have)
                .clamp(SOME, STEP),
            None => SOME,
        };
        self.inbox.resize(have + more, 0);
        let got = (&*self.stream).read(&mut self.inbox[have..]);
        self.inbox.truncate(have + *got.as_ref().unwrap_or(&0));
        came(got).map(|got| got > 0)
    }

    /// Takes bytes of a block that have come with the frame before it.
    pub(crate) fn take_ahead(&mut self, into: &mut [u8]) -> usize {
        let ahead = &self.inbox[self.at..];
        let count = ahead.len().min(into.len());
        into[..count].copy_from_slice(&ahead[..count]);
        self.at += count;
        count
    }

    /// Reads bytes of a block into pieces, and up to `beyond` bytes of what follows them into the inbox.
    ///
    /// # Returns
    /// How many bytes of the pieces came.
    pub(crate) fn receive(
        &mut self,
        pieces: &mut [IoSliceMut<'_>],
        beyond: usize,
    ) -> Result<usize, Lost> {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut ahead = [0; 128];
        let beyond = &mut ahead[..beyond.min(128)];
        let mut all: Vec<IoSliceMut<'_>> = pieces
            .iter_mut()
            .map(|piece| IoSliceMut::new(piece))
            .collect();
        if !beyond.is_empty() {
            all.push(IoSliceMut::new(beyond));
        }
        let got = came((&*self.stream).read_vectored(&mut all))?;
        if got > room {
            // Nothing else is there: the block's bytes would have come from it.
            self.inbox.clear();
            self.at = 0;
            self.inbox.extend_from_slice(&ahead[..got - room]);
        }
        Ok(got.min(room))
    }

    /// Sends the outbox, and then pieces of a block, as far as there is room for them; returns how many bytes of
    /// the pieces.
    pub(crate) fn send(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, Lost> {
        let before = &self.outbox[self.sent..];
        let mut all = Vec::with_capacity(pieces.len() + 1);
        all.push(IoSlice::new(before));
        all.extend_from_slice(pieces);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(
            &*self.stream,
            &all,
            &mut SendAncillaryBuffer::default(),
            flags,
        );
        let sent = match sent {
            Ok(sent) => sent,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                return Err(Lost::Closed);
            }
            Err(error) => return Err(Lost::Io(error.into())),
        };
        let frames = sent.min(before.len());
        self.sent += frames;
        if !self.has_to_send() {
            self.outbox.clear();
            self.sent = 0;
        }
        Ok(sent - frames)
    }

    /// Waits until there is something to read, or room to send where something is to be sent.
    pub(crate) fn wait(&self, sends: bool, wake: Option<&Wake>, until: Instant) -> io::Result<()> {
        let flags = if sends {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        wait_for([(&*self.stream, flags)], wake, until).map(|_| ())
    }

    /// The same for room alone: what comes stays where it is.
    pub(crate) fn wait_for_room(&self, until: Instant) -> io::Result<()> {
        wait_for([(&*self.stream, PollFlags::OUT)], None, until).map(|_| ())
    }

    /// Sends the outbox.
    pub(crate) fn flush(&mut self, until: Instant) -> Result<(), Lost> {
        while self.has_to_send() {
            self.send(&[])?;
            if self.has_to_send() {
                if Instant::now() >= until {
                    return Err(Lost::Late);
                }
                self.wait_for_room(until)?;
            }
        }
        Ok(())
    }

    /// Waits for a frame.
    pub(crate) fn hear(&mut self, until: Instant) -> Result<Frame, Lost> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            if Instant::now() >= until {
                return Err(Lost::Late);
            }
            if !self.fill()? {
                self.wait(false, None, until)?;
            }
        }
    }
}

/// How much has come; 0 where there is nothing now.
fn came(got: io::Result<usize>) -> Result<usize, Lost> {
    match got {
        Ok(0) => Err(Lost::Closed),
        Ok(got) => Ok(got),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(Lost::Closed),
            _ => Err(Lost::Io(error)),
        },
    }
}
