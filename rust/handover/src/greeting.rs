//! How two sides meet: fresh numbers of both, proofs where there is a secret, and then what the bytes depend on. Who
//! does not prove the secret is told nothing. INV-36g

use crate::frame::{Frame, MOST, MOST_UNPROVEN, Role};
use crate::link::{Link, Lost};
use crate::secret::{Meeting, Secret, fresh};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who a side is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A number that this process has drawn, never 0.
    pub boot: u32,
    /// What it is called in the other's log.
    pub name: String,
    /// Names and values of what the bytes depend on; both sides have the same.
    pub fields: Vec<(String, String)>,
    /// What both know. Without one only this machine is served, or asked.
    pub secret: Option<Secret>,
}

/// Who the other side is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Other {
    pub(crate) boot: u32,
    pub(crate) name: String,
    pub(crate) rank: u32,
    /// Where its memory is, as it was asked.
    pub(crate) memory: Vec<u8>,
}

/// Whether an address is of this machine alone, by its text.
pub fn is_loopback(address: &str) -> bool {
    let Some((host, _)) = address.rsplit_once(':') else {
        return false;
    };
    let ip = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || ip
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// What a decode side wants of the other one.
pub(crate) struct Wish<'own> {
    pub(crate) address: &'own str,
    pub(crate) identity: &'own Identity,
    pub(crate) rank: u32,
    pub(crate) bytes: u32,
    /// The carrier that is to be there, where it is another one than this connection.
    pub(crate) carrier: Option<&'own str>,
}

/// Connects to a prefill side.
pub(crate) fn connect(wish: &Wish<'_>, timeout: Duration) -> Result<(Link, Other), Lost> {
    let Wish {
        address, identity, ..
    } = *wish;
    let until = Instant::now() + timeout;
    let mut last = Lost::Refused(format!("{address} is no address"));
    for found in address.to_socket_addrs()? {
        // What a name means may have changed.
        if identity.secret.is_none() && !found.ip().is_loopback() {
            continue;
        }
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&found, left.max(Duration::from_millis(1))) {
            Ok(stream) => {
                let mut link = Link::new(Arc::new(stream), MOST_UNPROVEN)?;
                let other = greet(&mut link, wish, until)?;
                return Ok((link, other));
            }
            Err(error) => last = Lost::Io(error),
        }
    }
    Err(last)
}

/// The decode side of a meeting.
fn greet(link: &mut Link, wish: &Wish<'_>, until: Instant) -> Result<Other, Lost> {
    let Wish {
        identity,
        rank,
        bytes,
        ..
    } = *wish;
    let nonce = fresh()?;
    say_nonce(link, Role::Decode, identity, nonce);
    link.flush(until)?;
    let (boot, wants, theirs) = hear_nonce(link, Role::Prefill, until)?;
    let meeting = Meeting {
        prefill: (boot, theirs),
        decode: (identity.boot, nonce),
    };
    match (&identity.secret, wants) {
        (Some(secret), true) => {
            link.say(&Frame::Proof(secret.proof(Role::Decode, &meeting)));
            link.flush(until)?;
            match link.hear(until) {
                Ok(Frame::Proof(proof)) if secret.is_proved(Role::Prefill, &meeting, &proof) => {}
                Ok(_) | Err(Lost::Closed) => {
                    return Err(Lost::Refused(
                        "it has another secret: give both sides the same file".into(),
                    ));
                }
                Err(lost) => return Err(lost),
            }
        }
        (None, false) => {}
        (None, true) => {
            return Err(Lost::Refused(
                "it wants a secret, and there is none here: give secret_file".into(),
            ));
        }
        (Some(_), false) => {
            return Err(Lost::Refused(
                "it has no secret, and there is one here: give both sides the same file".into(),
            ));
        }
    }
    link.most = MOST;
    link.say(&hello(identity, rank, bytes));
    link.flush(until)?;
    match link.hear(until)? {
        Frame::Hello { name, .. } => Ok(Other {
            boot,
            name,
            rank,
            memory: ask_where(link, wish.carrier, until)?,
        }),
        Frame::Differs { field, here } => {
            let own = identity.fields.iter().find(|(name, _)| *name == field);
            let own = own.map_or_else(|| bytes.to_string(), |(_, value)| value.clone());
            Err(Lost::Refused(format!(
                "{field} is {here:?} there, and {own:?} here"
            )))
        }
        _ => Err(Lost::Unasked),
    }
}

/// Where the memory of the other side is, which has proved that it knows the secret.
fn ask_where(link: &mut Link, carrier: Option<&str>, until: Instant) -> Result<Vec<u8>, Lost> {
    let Some(carrier) = carrier else {
        return Ok(Vec::new());
    };
    link.say(&Frame::Where);
    link.flush(until)?;
    match link.hear(until)? {
        Frame::Memory(said) if said.is_empty() => Err(Lost::Refused(format!(
            "carrier is \"tcp\" there, and {carrier:?} here"
        ))),
        Frame::Memory(said) => Ok(said),
        _ => Err(Lost::Unasked),
    }
}

/// The prefill side of a meeting.
///
/// # Arguments
/// `bytes` are those of a block of each rank; `proved` is called as soon as the other one knows the secret.
pub(crate) fn welcome(
    link: &mut Link,
    identity: &Identity,
    bytes: &[u32],
    until: Instant,
    proved: impl FnOnce(),
) -> Result<Other, Lost> {
    let (boot, wants, theirs) = hear_nonce(link, Role::Decode, until)?;
    let nonce = fresh()?;
    say_nonce(link, Role::Prefill, identity, nonce);
    link.flush(until)?;
    let meeting = Meeting {
        prefill: (identity.boot, nonce),
        decode: (boot, theirs),
    };
    match &identity.secret {
        Some(secret) => {
            match link.hear(until) {
                Ok(Frame::Proof(proof)) if secret.is_proved(Role::Decode, &meeting, &proof) => {}
                // Who has none leaves.
                Ok(Frame::Proof(_)) | Err(Lost::Closed) => {
                    return Err(Lost::Refused("it has another secret, or none".into()));
                }
                Ok(_) => return Err(Lost::Unasked),
                Err(lost) => return Err(lost),
            }
            link.say(&Frame::Proof(secret.proof(Role::Prefill, &meeting)));
            link.flush(until)?;
        }
        None if wants => {
            return Err(Lost::Refused(
                "it has a secret, and there is none here".into(),
            ));
        }
        None => {}
    }
    link.most = MOST;
    proved();
    let Frame::Hello {
        name,
        rank,
        bytes: block,
        fields,
    } = link.hear(until)?
    else {
        return Err(Lost::Unasked);
    };
    let here = bytes.get(rank as usize).copied();
    let differs = differing(&identity.fields, &fields).or_else(|| match here {
        None => Some(("ranks".to_owned(), bytes.len().to_string())),
        Some(here) if here != block => Some(("block_bytes".to_owned(), here.to_string())),
        Some(_) => None,
    });
    if let Some((field, here)) = differs {
        let why = format!("its {field} differs");
        link.say(&Frame::Differs { field, here });
        link.flush(until)?;
        return Err(Lost::Refused(why));
    }
    link.say(&hello(identity, rank, block));
    link.flush(until)?;
    Ok(Other {
        boot,
        name,
        rank,
        memory: Vec::new(),
    })
}

/// The first field that is not the same, and what it is here.
fn differing(here: &[(String, String)], there: &[(String, String)]) -> Option<(String, String)> {
    let of = |fields: &[(String, String)], name: &str| {
        let found = fields.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    };
    for (name, value) in here {
        if of(there, name).as_ref() != Some(value) {
            return Some((name.clone(), value.clone()));
        }
    }
    let unknown = there.iter().find(|(name, _)| of(here, name).is_none())?;
    Some((unknown.0.clone(), String::new()))
}

fn hello(identity: &Identity, rank: u32, bytes: u32) -> Frame {
    Frame::Hello {
        name: identity.name.clone(),
        rank,
        bytes,
        fields: identity.fields.clone(),
    }
}

fn say_nonce(link: &mut Link, role: Role, identity: &Identity, nonce: [u8; 32]) {
    link.say(&Frame::Nonce {
        role,
        secret: identity.secret.is_some(),
        boot: identity.boot,
        nonce,
    });
}

fn hear_nonce(link: &mut Link, whose: Role, until: Instant) -> Result<(u32, bool, [u8; 32]), Lost> {
    match link.hear(until)? {
        Frame::Nonce {
            role,
            secret,
            boot,
            nonce,
        } if role == whose && boot != 0 => Ok((boot, secret, nonce)),
        _ => Err(Lost::Unasked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn the_first_field_that_differs_is_named_whichever_side_lacks_it() {
        let here = fields(&[("model", "a"), ("dtype", "f16")]);
        assert_eq!(differing(&here, &here), None);
        let there = fields(&[("dtype", "f8"), ("model", "a")]);
        assert_eq!(
            differing(&here, &there),
            Some(("dtype".into(), "f16".into()))
        );
        assert_eq!(
            differing(&here, &here[..1]),
            Some(("dtype".into(), "f16".into()))
        );
        assert_eq!(
            differing(&here[..1], &here),
            Some(("dtype".into(), String::new()))
        );
    }

    #[test]
    fn only_addresses_of_this_machine_are_loopback() {
        for here in ["127.0.0.1:80", "localhost:1", "[::1]:9", "127.9.9.9:0"] {
            assert!(is_loopback(here), "{here}");
        }
        for there in [
            "0.0.0.0:80",
            "localhost.example:1",
            "10.0.0.1:1",
            "127.0.0.1",
            "",
            "[::]:1",
        ] {
            assert!(!is_loopback(there), "{there}");
        }
    }
}
