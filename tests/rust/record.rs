//! Recording: what is in the file, and that nothing waits for it. INV-38

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use blockyard_record::{
    Counts, Error, HEADER, Header, MAGIC, MOST_REQUESTS, REQUEST, Recorder, Seen,
};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A folder that is gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("blockyard-record-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("traffic.rec")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(recorder: &Recorder, prompt: u64, answer: u64, keys: &[[u8; 32]]) {
    let arrived = recorder.now();
    recorder.write(Seen { arrived, prompt }, answer, keys.iter());
}

fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// What the headers of a file say, and the bodies of the frames behind them as numbers.
fn read(path: &Path) -> (Vec<Header>, Vec<Vec<u64>>) {
    let bytes = fs::read(path).unwrap();
    let (mut headers, mut bodies, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(&MAGIC) {
            headers.push(Header::of(&bytes[at..]).unwrap());
            at += HEADER;
            continue;
        }
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let body = &bytes[at + 8..at + 8 + length];
        bodies.push(
            body.chunks(8)
                .map(|part| u64::from_le_bytes(part.try_into().unwrap()))
                .collect(),
        );
        at += 8 + length;
    }
    (headers, bodies)
}

/// Law: INV-38
#[test]
fn inv_38_what_was_handed_over_is_in_the_file_and_only_its_owner_reads_it() {
    let folder = Folder::new("file");
    let recorder = Recorder::open(&folder.file(), 16).unwrap();
    write(&recorder, 40, 7, &[key(1), key(2)]);
    write(&recorder, 3, 0, &[]);
    assert!(recorder.close(PATIENCE));
    assert_eq!(
        recorder.counts(),
        Counts {
            recorded: 2,
            dropped: 0
        }
    );
    assert_eq!(recorder.trouble(), None);
    write(&recorder, 3, 0, &[]);
    assert_eq!(
        recorder.counts(),
        Counts {
            recorded: 2,
            dropped: 0
        },
        "what comes when it is closed is not lost"
    );
    let (headers, bodies) = read(&folder.file());
    assert_eq!(
        headers.iter().map(|one| one.block_size).collect::<Vec<_>>(),
        [16]
    );
    assert_eq!(bodies[0][2..], [40, 7, 1, 2]);
    assert_eq!(bodies[1][2..], [3, 0]);
    assert!(bodies[0][0] <= bodies[0][1] && bodies[0][0] <= bodies[1][0]);
    let bytes = HEADER + 2 * REQUEST + 2 * 8;
    let file = fs::metadata(folder.file()).unwrap();
    assert_eq!(file.len(), bytes as u64);
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
}

/// Law: INV-38
#[test]
fn a_later_process_appends_behind_whatever_a_crash_has_left() {
    let folder = Folder::new("torn");
    for (start, torn) in [&b""[..], &[7; 5], &[]].into_iter().enumerate() {
        let recorder = Recorder::open(&folder.file(), 16).unwrap();
        write(&recorder, 16 + start as u64, 0, &[key(1)]);
        assert!(recorder.close(PATIENCE));
        drop(recorder);
        let mut file = OpenOptions::new().append(true).open(folder.file()).unwrap();
        file.write_all(torn).unwrap();
    }
    let bytes = fs::read(folder.file()).unwrap();
    let starts = bytes
        .windows(MAGIC.len())
        .filter(|part| part == &MAGIC)
        .count();
    assert_eq!(starts, 3);
    assert_eq!(bytes.len(), 3 * (HEADER + REQUEST + 8) + 5);
}

#[test]
fn nothing_is_overwritten_and_two_do_not_write_one_file() {
    let folder = Folder::new("refused");
    let path = folder.file();
    let refused = |block_size| Recorder::open(&path, block_size).map(|_| ()).unwrap_err();
    fs::write(&path, "notes of mine").unwrap();
    assert!(matches!(refused(16), Error::Foreign { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"notes of mine");
    fs::remove_file(&path).unwrap();
    // What a crash has left of a header is no other file.
    fs::write(&path, &MAGIC[..9]).unwrap();
    let first = Recorder::open(&path, 16).unwrap();
    assert!(matches!(refused(16), Error::Owned { .. }));
    assert!(first.close(PATIENCE));
    drop(first);
    fs::write(
        &path,
        Header {
            block_size: 16,
            began: 0,
        }
        .bytes(),
    )
    .unwrap();
    assert!(matches!(
        refused(32),
        Error::Blocks {
            there: 16,
            own: 32,
            ..
        }
    ));
    assert!(matches!(
        Recorder::open(&folder.0, 16),
        Err(Error::System { .. })
    ));
    assert!(matches!(
        Recorder::open(&path.join("below"), 16),
        Err(Error::System { .. })
    ));
}

/// Law: INV-38
#[test]
fn inv_38_a_disk_that_is_full_costs_records_and_no_time() {
    let recorder = Recorder::open(Path::new("/dev/full"), 16).unwrap();
    for _ in 0..100 {
        write(&recorder, 16, 1, &[key(1)]);
    }
    assert!(recorder.close(PATIENCE));
    assert_eq!(
        recorder.counts(),
        Counts {
            recorded: 0,
            dropped: 100
        }
    );
    assert!(recorder.trouble().unwrap().contains("No space left"));
}

/// Law: INV-38
#[test]
fn inv_38_a_disk_that_is_frozen_costs_records_and_no_time() {
    let folder = Folder::new("frozen");
    let path = folder.file();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let recorder = Recorder::open(&path, 16).unwrap();
    // A pipe that nobody reads takes 64 KiB, and then holds its writer up for good.
    let many = 2 * MOST_REQUESTS as u64;
    for _ in 0..many {
        write(&recorder, 160, 1, &[key(1); 10]);
    }
    let began = Instant::now();
    assert!(
        !recorder.close(Duration::from_millis(20)),
        "it is still held up"
    );
    assert!(began.elapsed() < PATIENCE);
    let counts = recorder.counts();
    assert!(counts.dropped > 0, "the queue is bounded");
    // The writer may have had a first batch that the pipe has room for.
    let written = counts.recorded as usize * (REQUEST + 80);
    assert!(written <= 1 << 16, "{counts:?}");
    // When the disk wakes up, what was waiting is written.
    let mut pipe = OpenOptions::new().read(true).open(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        let mut bytes = 0;
        while let Ok(more) = pipe.read(&mut buffer) {
            bytes += more;
            if more == 0 {
                break;
            }
        }
        bytes
    });
    let limit = Instant::now() + PATIENCE;
    while !recorder.close(Duration::from_millis(20)) && Instant::now() < limit {}
    let counts = recorder.counts();
    drop(recorder);
    let bytes = reader.join().unwrap();
    assert_eq!(counts.recorded + counts.dropped, many);
    assert!(counts.recorded > 0 && counts.dropped > 0, "{counts:?}");
    assert_eq!(bytes, HEADER + counts.recorded as usize * (REQUEST + 80));
}
