//! The keys of a chain: what they depend on, and that nothing else changes them. `docs/keys.md` has the
//! encoding.

use blockyard_core::{Chain, Error, Extras, Group, Key, KeyHash, Media, Namespace, Seed};
use sha2::block_api::compress256;
use sha2::{Digest, Sha256};

const HASHES: [KeyHash; 2] = [KeyHash::Sha256, KeyHash::Xxh3];

fn hex(key: &Key) -> String {
    key.0
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn seed(hash: KeyHash, group: u8, block_size: u32) -> Seed {
    let namespace = Namespace {
        model: "llama".to_owned(),
        weights: "1".to_owned(),
        dtype: "bfloat16".to_owned(),
        layout: "hnd".to_owned(),
        parallel: "tp1".to_owned(),
    };
    Seed::new(hash, &namespace, Group(group), block_size)
}

fn item(start: u64, end: u64, id: &str) -> Media {
    Media {
        start,
        end,
        id: id.as_bytes().to_vec(),
    }
}

fn with_media(media: Vec<Media>) -> Extras {
    Extras {
        media,
        ..Extras::default()
    }
}

fn chain(seed: &Seed, extras: Extras, tokens: &[u32]) -> Chain {
    let mut chain = Chain::new(seed, extras).expect("the media are in order");
    chain.extend(tokens).expect("it makes its own keys");
    chain
}

fn name_of(error: Error) -> &'static str {
    match error {
        Error::Argument { name, .. } => name,
        other => panic!("not an argument error: {other:?}"),
    }
}

/// A small generator, so that every run tries the same cases.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// The encoding of `docs/keys.md` once more, naively. The compression function is the library's; tables
/// of keys that were made elsewhere vouch for it.
fn naive(seed: &Seed, extras: &Extras, tokens: &[u32]) -> Vec<Key> {
    let size = u64::from(seed.block_size());
    let header = |tag, parts: usize| {
        let mut header = vec![tag, 2, 0, seed.group().0];
        header.extend(seed.block_size().to_le_bytes());
        header.extend((parts as u32).to_le_bytes());
        header.extend(b"BYKY");
        header
    };
    let root = seed.sequence_root(extras.lora.as_deref(), extras.salt.as_deref());
    let mut parent = pieces(&Key(IV), [header(4, 0), root.0.to_vec()].concat());
    let mut keys = Vec::new();
    for (block, start) in tokens
        .chunks_exact(size as usize)
        .zip((0..).step_by(size as usize))
    {
        let over = |item: &&Media| item.start < start + size && item.end > start;
        let over: Vec<_> = extras.media.iter().filter(over).collect();
        let tokens: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
        parent = if over.is_empty() {
            pieces(&parent, tokens)
        } else {
            let mut message = [header(3, over.len()), parent.0.to_vec(), tokens].concat();
            for item in over {
                message.extend((item.id.len() as u64).to_le_bytes());
                message.extend(&item.id);
                message.extend(item.start.wrapping_sub(start).to_le_bytes());
                message.extend((item.end - item.start).to_le_bytes());
            }
            Key(Sha256::digest(&message).into())
        };
        keys.push(parent);
    }
    keys
}

/// The initial state of SHA-256.
const IV: [u8; 32] = [
    0x6a, 0x09, 0xe6, 0x67, 0xbb, 0x67, 0xae, 0x85, 0x3c, 0x6e, 0xf3, 0x72, 0xa5, 0x4f, 0xf5, 0x3a,
    0x51, 0x0e, 0x52, 0x7f, 0x9b, 0x05, 0x68, 0x8c, 0x1f, 0x83, 0xd9, 0xab, 0x5b, 0xe0, 0xcd, 0x19,
];

/// The state of SHA-256 behind `content`, which zeros fill up to whole pieces.
fn pieces(parent: &Key, mut content: Vec<u8>) -> Key {
    content.resize(content.len().next_multiple_of(64), 0);
    let word = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes);
    let mut words = parent.0.as_chunks().0.iter().map(word);
    let mut state = std::array::from_fn(|_| words.next().expect("eight words"));
    compress256(&mut state, content.as_chunks().0);
    let bytes = state.iter().flat_map(|word: &u32| word.to_be_bytes());
    Key(bytes.collect::<Vec<u8>>().try_into().expect("32 bytes"))
}

/// Random items in the order of their positions; many touch one another or a block's edge.
fn random_media(random: &mut Random, tokens: usize) -> Vec<Media> {
    let mut media = Vec::new();
    let mut at = random.below(9);
    while at < tokens {
        let end = at + 1 + random.below(12);
        media.push(item(at as u64, end as u64, &"x".repeat(random.below(70))));
        at = end + random.below(3) * random.below(8);
    }
    media
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of known keys")]
fn keys_are_those_computed_elsewhere() {
    let mut tokens: Vec<u32> = (0..64).map(|i| (i * 7919 + 13) % 150_000).collect();
    tokens[5] = u32::MAX;
    let extras = Extras {
        lora: Some(b"adapter".to_vec()),
        salt: Some(b"tenant".to_vec()),
        media: vec![item(30, 50, "image-a"), item(50, 52, "image-b")],
    };
    for (hash, group, block_size, plain, rich, last) in [
        (
            KeyHash::Sha256,
            0,
            16,
            [
                "02e7ee28c9fe5f80fcad87aa0dd381121659c9ed492a6ab88ae9e76474a87f2b",
                "a4caee729197f7053492e4862e02d67dd78f9d19732338100ccff350670c84de",
            ],
            [
                "e928653e8189c53f0746a090c642307323fc3b554099c1b66e7234316ce1d8e6",
                "2f3e7d1f8b72d7684cd828ba7df8de8e04000b695f5d11d677d23ced1bc48470",
            ],
            "a89cbce808723b76e790b5ade323e67762ea6fcea48c817be17c8dff8587108e",
        ),
        (
            KeyHash::Sha256,
            3,
            4,
            [
                "8a4874d269be48710a2c44ff0c796ae18a1c8c54abf24abaa9e52b26a5afbadd",
                "c3b83b3a93453c8cc2cdda013bc09e414886b615fb8e31d53f2a6e78d4ec4c06",
            ],
            [
                "f9c93bfc6d60ee2a04e4f13f1bf745e12d5c7204969d59a7954b588a29e11e2d",
                "1ca522b00cfe88fd647495f593cea083c5b356811a34ed17699d2e0668c775ab",
            ],
            "0a1f6f2b924d76db59c0d05e7f72524d688cac0ebdc7e1b3c223339df35ddd59",
        ),
        (
            KeyHash::Sha256,
            0,
            1,
            [
                "246dfcde6126827a7446db6a9a921c7cbcf5e84ad640104f193cec4578d60e96",
                "7d600ca33be0b8d7e5e86553b0d17893a15c35007081e4215ac632a19076fba0",
            ],
            [
                "d76ad0fc7a3cad04ee01108815539c356f59a12a97c1681cb5ad5013a5ae1331",
                "56fa67d79bfaa134648b284aaa4523c60c49d522060ffca5ab194fbd3e045157",
            ],
            "0e959ecaed2b5db01822ae2ab4fe16d4e55267adac91aa7c1029be48bb18ba84",
        ),
        (
            KeyHash::Sha256,
            1,
            8,
            [
                "edd666b788f578de2b1b7cec2a57da21add19371e0d3accbe4271824af669371",
                "f8794f441dba459f2e408ab1f71d156af24e3f5bf2ce54c95d37cd9df87d88ae",
            ],
            [
                "1d28af5c07945b1d0c678df99792d8c82dae64da6273c8385ab5d9b885e5eed2",
                "e3f5d9001b58420da69f247e8808dcf286d12d1c8629c2b18cb0d8d9706632f7",
            ],
            "a70908eeb39e8391814a2595668e30acd6575d541e7c7513a3f51b56af9587fb",
        ),
        (
            KeyHash::Sha256,
            2,
            17,
            [
                "e785eaeeb03037d8629502d1a9ede37ca1143a26f05fe4c7e032ce9f1ed674b0",
                "e0efa128191767cc97d4ea34dfbef2079b721aa1c6b73b63491080a5fb4a224b",
            ],
            [
                "38e92cb590cfd5cf567f0f36e2a1a401a3265aebdf750b6656e4418e99534e05",
                "2d8a4b0787aeb026fe53d220407caff9cf06006ffce90e84dfffa2724969c19c",
            ],
            "4cc267244b25bfc3d402c89d82bcbf2579b7c7f1ce5e1566faf55270eb22f050",
        ),
        (
            KeyHash::Sha256,
            0,
            32,
            [
                "765f8d135633a3b510a912ed77260e662652fb7c2eb670366135b69f9146002b",
                "47c2253f9ad3534ac14e45956fe1104878253ebe7db30b3afeb972dcd074acc1",
            ],
            [
                "6ce6a4c9349701f248f1c12267714d3330162ad083714e12700857aeb7456e9f",
                "0b8cbc5069419262e9447bed795b057e9f808d806a8b1be3abcbb3c56ff1315a",
            ],
            "0b8cbc5069419262e9447bed795b057e9f808d806a8b1be3abcbb3c56ff1315a",
        ),
        (
            KeyHash::Xxh3,
            0,
            16,
            [
                "9c00977fda949e68bcd714e40242a4ae1e092a7b7c8bc8122341fed882d40bc3",
                "9b24b1ffeebea4b0789f992eac8e44cd466488f6ce85acdb76577634ba706ac3",
            ],
            [
                "875bae061428e6290076582e54c72a95a30ac7cdb3e79835b513aaf61f975a36",
                "275d62c4c77d8aa48a9f3ad1379417506c85c41276a8c48b60d568110bd420bc",
            ],
            "3210a1fb263e46fd7ad93d8740b85390bbc37cbe4f9fd23df92149e8a11e95ff",
        ),
        (
            KeyHash::Xxh3,
            3,
            4,
            [
                "be7920ec2702a5494c0463a71bc44df31fa13256c9b7431b525e6f21aaf818de",
                "b4448bf89c89c60184530e228d423083ec631eccba0a2ce3878fbbf68cc1853a",
            ],
            [
                "a9bbacbf6e4bea132ada4159ca53afb8a64094171b109f4a616c5c46748b258d",
                "cb1d98cd91918674c5cfe4f08075d0774922b7ca06716193109b73644f385839",
            ],
            "c758db1f6095841a90dc8d573f53eb2d13cf4e688402cf6585c847eeb4c8fad1",
        ),
    ] {
        let seed = seed(hash, group, block_size);
        let made = chain(&seed, Extras::default(), &tokens);
        assert_eq!([hex(&made.keys()[0]), hex(&made.keys()[1])], plain);
        let made = chain(&seed, extras.clone(), &tokens);
        assert_eq!([hex(&made.keys()[0]), hex(&made.keys()[1])], rich);
        assert_eq!(hex(made.keys().last().unwrap()), last);
    }
    let first: Vec<u32> = (0..16).collect();
    let made = chain(&seed(KeyHash::Sha256, 0, 16), Extras::default(), &first);
    assert_eq!(hex(&made.keys()[0])[..16], *"d418447302e1f6c5");
}

#[test]
fn cuts_change_nothing() {
    let mut random = Random(7);
    for case in 0..400 {
        let block_size = [1, 3, 4, 8, 16, 32, 33][random.below(7)];
        let length = random.below(200);
        let tokens: Vec<u32> = (0..length)
            .map(|_| random.below(1 << 31) as u32 * 2)
            .collect();
        let media = if case % 2 == 0 {
            random_media(&mut random, length)
        } else {
            Vec::new()
        };
        let extras = with_media(media);
        for hash in HASHES {
            let seed = seed(hash, 2, block_size);
            let whole = chain(&seed, extras.clone(), &tokens);
            if hash == KeyHash::Sha256 {
                assert_eq!(whole.keys(), naive(&seed, &extras, &tokens), "case {case}");
            }
            let mut cut = Chain::new(&seed, extras.clone()).unwrap();
            let longest = [1, 5, 50][random.below(3)];
            let mut rest = tokens.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(random.below(longest + 1).min(rest.len()));
                // A fork goes on as its original would have.
                cut = if random.below(4) == 0 {
                    cut.clone()
                } else {
                    cut
                };
                let (before, expected) = (cut.keys().len(), cut.keys_made_by(now.len()));
                cut.extend(now).unwrap();
                assert_eq!(cut.keys().len() - before, expected, "case {case}");
                rest = later;
            }
            assert_eq!(cut.keys(), whole.keys(), "case {case}");
            assert_eq!(cut.tokens(), length as u64);
        }
    }
}

#[test]
fn media_enters_exactly_the_blocks_it_overlaps() {
    let tokens: Vec<u32> = (100..116).collect();
    for hash in HASHES {
        let seed = seed(hash, 0, 4);
        let plain = chain(&seed, Extras::default(), &tokens);
        // Where the first key differs is the first block that the item overlaps.
        for (start, end, first) in [
            (2, 5, 0),   // crosses the right edge of block 0
            (3, 9, 0),   // crosses it, spans block 1, crosses the left edge of block 2
            (4, 8, 1),   // fills block 1 exactly; adjacent to block 0
            (8, 12, 2),  // the same for block 2
            (5, 6, 1),   // inside
            (15, 40, 3), // goes on beyond the tokens
            (16, 20, 4), // behind them
        ] {
            let made = chain(&seed, with_media(vec![item(start, end, "image")]), &tokens);
            let same = plain
                .keys()
                .iter()
                .zip(made.keys())
                .take_while(|(a, b)| a == b)
                .count();
            assert_eq!(same, first, "[{start}, {end})");
            // Everything behind inherits the difference.
            assert!(
                plain.keys()[first..]
                    .iter()
                    .zip(&made.keys()[first..])
                    .all(|(a, b)| a != b)
            );
        }
    }
}

#[test]
fn an_item_is_told_by_id_place_and_length() {
    let seed = seed(KeyHash::Sha256, 0, 8);
    let layouts = [
        vec![],
        vec![item(1, 4, "a")],
        vec![item(1, 4, "b")],
        vec![item(1, 4, "")],
        vec![item(2, 4, "a")],
        vec![item(1, 5, "a")],
        vec![item(1, 50, "a")],
        vec![item(1, 2, "a"), item(2, 4, "a")],
        vec![item(1, 2, "a"), item(2, 4, "b")],
        vec![item(1, 2, "b"), item(2, 4, "a")],
    ];
    let key = |media: &Vec<Media>| chain(&seed, with_media(media.clone()), &[0; 8]).keys()[0];
    let mut keys: Vec<Key> = layouts.iter().map(key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), layouts.len());
}

#[test]
fn salt_and_adapter_isolate_every_block() {
    let tokens = [7; 64];
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    for hash in HASHES {
        let seed = seed(hash, 0, 16);
        let mut keys = Vec::new();
        for lora in [None, bytes(""), bytes("a"), bytes("b")] {
            for salt in [None, bytes(""), bytes("a"), bytes("b")] {
                let extras = Extras {
                    lora: lora.clone(),
                    salt,
                    media: Vec::new(),
                };
                keys.extend_from_slice(chain(&seed, extras, &tokens).keys());
            }
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 16 * 4);
    }
}

#[test]
fn groups_and_block_sizes_share_no_key() {
    let mut keys = Vec::new();
    for hash in HASHES {
        for (group, block_size) in [(0, 1), (1, 1), (0, 2), (255, 2)] {
            let made = chain(
                &seed(hash, group, block_size),
                Extras::default(),
                &[1, 2, 3],
            );
            assert_eq!(made.block_size(), block_size);
            keys.extend_from_slice(made.keys());
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 2 * (3 + 3 + 1 + 1));
}

#[test]
fn partial_blocks_have_no_key_and_nothing_is_a_no_op() {
    let seed = seed(KeyHash::Sha256, 0, 4);
    let mut made = Chain::new(&seed, Extras::default()).unwrap();
    made.extend(&[]).unwrap();
    assert_eq!((made.tokens(), made.keys().len()), (0, 0));
    made.extend(&[1, 2, 3]).unwrap();
    made.extend(&[]).unwrap();
    assert_eq!((made.tokens(), made.keys().len()), (3, 0));
    assert_eq!(
        [0, 1, 4, 5].map(|more| made.keys_made_by(more)),
        [0, 1, 1, 2]
    );
    assert_eq!(made.keys_made_by(usize::MAX), usize::MAX / 4);
    made.reserve(5).unwrap();
    made.extend(&[4]).unwrap();
    assert_eq!((made.tokens(), made.keys().len()), (4, 1));
    assert_eq!(
        made.keys(),
        chain(&seed, Extras::default(), &[1, 2, 3, 4]).keys()
    );
}

#[test]
fn forks_part_where_their_tokens_do() {
    let seed = seed(KeyHash::Sha256, 0, 4);
    let mut one = chain(&seed, Extras::default(), &[1, 2, 3, 4, 5, 6]);
    let mut other = one.clone();
    one.extend(&[7, 8]).unwrap();
    other.extend(&[7, 9]).unwrap();
    assert_eq!(one.keys()[0], other.keys()[0]);
    assert_ne!(one.keys()[1], other.keys()[1]);
    assert_eq!(
        one.keys(),
        chain(&seed, Extras::default(), &[1, 2, 3, 4, 5, 6, 7, 8]).keys()
    );
}

#[test]
fn bad_media_is_refused_with_its_value() {
    let seed = seed(KeyHash::Sha256, 0, 4);
    let limit = i64::MAX.unsigned_abs();
    for (media, told) in [
        (vec![item(5, 5, "a")], "[5, 5)"),
        (vec![item(6, 5, "a")], "[6, 5)"),
        (
            vec![item(2, 6, "a"), item(5, 7, "b")],
            "[2, 6) before [5, 7)",
        ),
        (
            vec![item(5, 7, "a"), item(2, 4, "b")],
            "[5, 7) before [2, 4)",
        ),
        (vec![item(0, limit + 1, "a")], "[0, 9223372036854775808)"),
    ] {
        match Chain::new(&seed, with_media(media)).unwrap_err() {
            Error::Argument {
                name: "media",
                value,
                ..
            } => assert_eq!(value, told),
            other => panic!("{other:?}"),
        }
    }
    let touching = vec![item(0, 2, "a"), item(2, 4, "b"), item(4, limit, "c")];
    assert_eq!(chain(&seed, with_media(touching), &[0; 12]).keys().len(), 3);
}

#[test]
fn a_block_has_tokens() {
    let seed = seed(KeyHash::Sha256, 0, 0);
    assert_eq!(
        name_of(Chain::new(&seed, Extras::default()).unwrap_err()),
        "block_size"
    );
    assert_eq!(
        name_of(Chain::ready(0, Vec::new(), 0).unwrap_err()),
        "block_size"
    );
}

#[test]
fn ready_keys_are_counted() {
    let key = |byte| Key([byte; 32]);
    assert_eq!(
        name_of(Chain::ready(4, vec![key(1)], 3).unwrap_err()),
        "keys"
    );
    assert_eq!(name_of(Chain::ready(4, vec![], 4).unwrap_err()), "keys");
    let mut made = Chain::ready(4, vec![key(1)], 6).unwrap();
    assert_eq!((made.tokens(), made.block_size()), (6, 4));
    assert_eq!((made.keys_made_by(1), made.keys_made_by(6)), (0, 2));

    for (tokens, keys) in [(1, &[key(2)][..]), (2, &[]), (6, &[key(2)]), (0, &[key(2)])] {
        assert_eq!(
            name_of(made.extend_ready(tokens, keys).unwrap_err()),
            "keys"
        );
    }
    assert_eq!(
        name_of(made.extend_ready(u64::MAX, &[]).unwrap_err()),
        "tokens"
    );
    assert_eq!(name_of(made.extend(&[1, 2]).unwrap_err()), "tokens");
    assert_eq!((made.tokens(), made.keys()), (6, &[key(1)][..]));

    made.extend_ready(0, &[]).unwrap();
    made.extend_ready(1, &[]).unwrap();
    made.extend_ready(5, &[key(2), key(3)]).unwrap();
    assert_eq!(
        (made.tokens(), made.keys()),
        (12, &[key(1), key(2), key(3)][..])
    );
}

#[test]
fn a_token_chain_takes_no_ready_keys() {
    let seed = seed(KeyHash::Sha256, 0, 4);
    let mut made = chain(&seed, Extras::default(), &[1, 2, 3]);
    assert_eq!(
        name_of(made.extend_ready(1, &[Key::default()]).unwrap_err()),
        "keys"
    );
    assert_eq!((made.tokens(), made.keys().len()), (3, 0));
    made.extend(&[4]).unwrap();
    assert_eq!(
        made.keys(),
        chain(&seed, Extras::default(), &[1, 2, 3, 4]).keys()
    );
}

#[test]
fn a_large_block_that_comes_in_parts_has_the_same_key() {
    let seed = seed(KeyHash::Sha256, 0, 30_000);
    let mut made = Chain::new(&seed, Extras::default()).unwrap();
    let tokens: Vec<u32> = (0..60_001).collect();
    for part in tokens.chunks(7_000) {
        made.extend(part).unwrap();
    }
    assert_eq!(made.keys(), naive(&seed, &Extras::default(), &tokens));
}

#[test]
fn keys_for_which_there_is_no_memory_change_nothing() {
    let seed = seed(KeyHash::Sha256, 0, 1);
    let mut made = chain(&seed, Extras::default(), &[1, 2, 3]);
    let refused = made.reserve(usize::MAX / 64).unwrap_err();
    assert!(
        matches!(refused, Error::Memory { bytes, .. } if bytes > 1 << 60),
        "{refused}"
    );
    assert_eq!((made.tokens(), made.keys().len()), (3, 3));
}
