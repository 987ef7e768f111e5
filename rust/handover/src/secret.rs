//! The secret of two sides, and the proof that they know it: an HMAC-SHA256 over fresh numbers of both, so that no
//! proof is good twice, and with the role, so that none is good for the other side. INV-36g

use crate::frame::Role;
use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::fmt;
use std::io;

/// Bytes that a secret has at least.
pub const LEAST_SECRET: usize = 16;

/// What both sides know and nobody else. It is never shown.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What both sides have said before they prove anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    pub(crate) prefill: (u32, [u8; 32]),
    pub(crate) decode: (u32, [u8; 32]),
}

impl Secret {
    /// One of [`LEAST_SECRET`] bytes or more.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= LEAST_SECRET).then(|| Self(bytes.to_vec()))
    }

    fn mac(&self, role: Role, meeting: &Meeting) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match role {
            Role::Prefill => b"blockyard hand-over 1: prefill",
            Role::Decode => b"blockyard hand-over 1: decode\0",
        });
        for (boot, nonce) in [&meeting.prefill, &meeting.decode] {
            mac.update(nonce);
            mac.update(&boot.to_le_bytes());
        }
        Some(mac)
    }

    /// The proof of a side.
    pub(crate) fn proof(&self, role: Role, meeting: &Meeting) -> [u8; 32] {
        let mac = self.mac(role, meeting);
        mac.map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether a proof is that of a side, in a time that does not tell how much of it is right.
    pub(crate) fn is_proved(&self, role: Role, meeting: &Meeting, proof: &[u8; 32]) -> bool {
        let mac = self.mac(role, meeting);
        mac.is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// Random bytes of the system.
pub(crate) fn fresh<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        match getrandom(&mut bytes[have..], GetRandomFlags::empty()) {
            Ok(more) => have += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting() -> Meeting {
        Meeting {
            prefill: (1, [1; 32]),
            decode: (2, [2; 32]),
        }
    }

    #[test]
    fn a_proof_is_good_for_one_meeting_and_one_side() {
        let secret = Secret::new(b"sixteen bytes or more").unwrap();
        let other = Secret::new(b"sixteen bytes or mort").unwrap();
        let proof = secret.proof(Role::Decode, &meeting());
        assert!(secret.is_proved(Role::Decode, &meeting(), &proof));
        assert!(!secret.is_proved(Role::Prefill, &meeting(), &proof));
        assert!(!other.is_proved(Role::Decode, &meeting(), &proof));
        let mut changed = [meeting(); 4];
        changed[0].prefill.0 ^= 1;
        changed[1].prefill.1[31] ^= 1;
        changed[2].decode.0 ^= 1;
        changed[3].decode.1[0] ^= 1;
        for meeting in changed {
            assert!(!secret.is_proved(Role::Decode, &meeting, &proof));
        }
    }

    #[test]
    fn a_proof_stays_what_it_is() {
        let secret = Secret::new(b"sixteen bytes or more").unwrap();
        let proof = secret.proof(Role::Decode, &meeting());
        assert_eq!(proof[..4], [160, 131, 17, 138]);
    }

    #[test]
    fn a_secret_is_not_shown_and_a_short_one_is_none() {
        let secret = Secret::new(b"sixteen bytes or more").unwrap();
        assert!(!format!("{secret:?}").contains("sixteen"));
        assert!(Secret::new(b"fifteen bytes!!").is_none());
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(fresh::<32>().unwrap(), fresh::<32>().unwrap());
    }
}
