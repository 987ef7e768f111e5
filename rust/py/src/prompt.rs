//! What a prompt's keys are made of: its tokens, and what else decides about its KV.

use crate::arguments;
use crate::buffers::{each, integers, shown};
use crate::cache_class::Cache;
use crate::error::{Failure, Outcome};
use crate::gil::hash;
use crate::keys::{Keys, ready_keys};
use blockyard_core::{self as core, Chain, Extras, Key, Media};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// What decides about a prompt's keys besides its tokens.
pub(crate) struct Apart<'a, 'py> {
    pub(crate) lora: Option<&'a Bound<'py, PyAny>>,
    pub(crate) salt: Option<&'a Bound<'py, PyAny>>,
    pub(crate) media: Option<&'a Bound<'py, PyAny>>,
}

impl Apart<'_, '_> {
    pub(crate) fn is_plain(&self) -> bool {
        self.lora.is_none() && self.salt.is_none() && self.media.is_none()
    }

    pub(crate) fn extras(&self, tokens: usize) -> PyResult<Extras> {
        let mut extras = Extras {
            lora: self.lora.map(|lora| text("lora", lora)).transpose()?,
            salt: self.salt.map(|salt| text("salt", salt)).transpose()?,
            media: Vec::new(),
        };
        if let Some(media) = self.media {
            let items = media.try_iter().map_err(|_| {
                let kind = media.get_type();
                Failure::misuse(format!("media is {kind}: pass a list of (start, end, id)"))
            })?;
            extras.media = each("media", media, items, |at, item| {
                one_item(at, &item, tokens)
            })?;
        }
        Ok(extras)
    }
}

/// One media item of a prompt of `tokens` tokens.
fn one_item(at: usize, item: &Bound<'_, PyAny>, tokens: usize) -> PyResult<Media> {
    if at == tokens {
        let message =
            format!("media has more items than the prompt has tokens, which are {tokens}");
        return Err(Failure::misuse(message).into());
    }
    let wrong = |_| {
        Failure::misuse(format!(
            "media has {}: pass (start, end, id) with token positions and str or bytes",
            shown(item)
        ))
    };
    let (start, end, id): (u64, u64, Bound<'_, PyAny>) = item.extract().map_err(wrong)?;
    let id = text("media id", &id)?;
    Ok(Media { start, end, id })
}

/// Checks that no item reaches beyond the prompt: tokens that come later are never media.
fn check_within(extras: &Extras, tokens: usize) -> Outcome<()> {
    match extras.media.last() {
        Some(last) if last.end > tokens as u64 => {
            let (start, end) = (last.start, last.end);
            Err(Failure::misuse(format!(
                "media has [{start}, {end}), and the prompt has {tokens} tokens: an item ends where \
                 the prompt does, or before"
            )))
        }
        _ => Ok(()),
    }
}

pub(crate) fn text(name: &str, from: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = from.cast::<PyString>() {
        return Ok(text.to_cow()?.as_bytes().to_vec());
    }
    if let Ok(bytes) = from.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Err(Failure::misuse(format!("{name} is {}: pass str or bytes", from.get_type())).into())
}

/// Makes the keys of a prompt; a long one is hashed detached.
pub(crate) fn chain(
    py: Python<'_>,
    cache: &core::Cache,
    tokens: &Bound<'_, PyAny>,
    apart: &Apart<'_, '_>,
) -> PyResult<Chain> {
    let tokens: Vec<u32> = integers("tokens", tokens)?;
    let extras = apart.extras(tokens.len())?;
    let within = check_within(&extras, tokens.len());
    let mut chain = cache.chain(extras).map_err(Failure::from)?;
    within?;
    hash(py, cache, tokens.len(), || chain.extend(&tokens))?;
    Ok(chain)
}

/// The keys of which a begin may find blocks: none where it reads no prefix.
pub(crate) fn read(chain: &Chain, read_prefix: bool) -> &[Key] {
    if read_prefix { chain.keys() } else { &[] }
}

pub(crate) fn check_plain(apart: &Apart<'_, '_>) -> Outcome<()> {
    if apart.is_plain() {
        return Ok(());
    }
    let message = "lora, salt and media are in the keys already: pass them to keys()";
    Err(Failure::misuse(message))
}

impl Cache {
    /// Checks that the keys are of blocks as large as this cache's.
    pub(crate) fn check_keys(&self, keys: &Chain) -> Outcome<()> {
        if keys.block_size() == self.block_size {
            return Ok(());
        }
        let (own, other) = (self.block_size, keys.block_size());
        let message = format!("keys of blocks of {other} tokens, and the cache has {own}");
        Err(Failure::misuse(message))
    }

    /// The keys of a prompt: the given ones, or ones made of its tokens.
    pub(crate) fn prompt(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        apart: &Apart<'_, '_>,
    ) -> PyResult<Chain> {
        let Ok(keys) = prompt.cast::<Keys>() else {
            return chain(py, &self.inner, prompt, apart);
        };
        check_plain(apart)?;
        let chain = keys.get().0.clone();
        self.check_keys(&chain)?;
        Ok(chain)
    }
}

#[guarded]
#[pymethods]
impl Cache {
    /// Makes the keys of a prompt's full blocks.
    ///
    /// Args:
    ///     tokens: Token ids, shape (tokens,), from 0 to 2**32 - 1.
    ///     lora: Name of the adapter.
    ///     salt: The tenant's salt: only prompts with the same salt find these blocks.
    ///     media: Items (start, end, id) at token positions [start, end), in ascending order. None
    ///         may end beyond the tokens.
    ///     after: Keys that these go on from: `tokens` are those behind its full blocks, and lora,
    ///         salt and media are in it already. Keys that the engine has made go on, too, as soon
    ///         as there is one.
    ///
    /// Raises:
    ///     Misuse: A value is out of range, or there are more than 2**25 tokens. One call takes at
    ///         most that many values of any sequence or array.
    ///     Unavailable: There is no memory for the keys.
    #[pyo3(signature = (tokens, *, lora=None, salt=None, media=None, after=None))]
    fn keys(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        media: Option<&Bound<'_, PyAny>>,
        after: Option<&Bound<'_, Keys>>,
    ) -> PyResult<Keys> {
        self.check_sound()?;
        let apart = Apart { lora, salt, media };
        let Some(after) = after else {
            return Ok(Keys(chain(py, &self.inner, tokens, &apart)?));
        };
        check_plain(&apart)?;
        let before = &after.get().0;
        self.check_keys(before)?;
        let tokens: Vec<u32> = integers("tokens", tokens)?;
        let mut chain = before
            .full_blocks(self.inner.seed())
            .map_err(Failure::from)?;
        hash(py, &self.inner, tokens.len(), || chain.extend(&tokens))?;
        Ok(Keys(chain))
    }

    /// Takes keys that the engine has made: 32 bytes per full block of `tokens` tokens.
    ///
    /// Args:
    ///     keys: A buffer of 32 bytes per key, or a list of bytes or of hexadecimal strings.
    ///     tokens: Tokens of the prompt.
    ///
    /// Raises:
    ///     Misuse: There is not exactly one key for each full block, or one is not of 32 bytes.
    fn ready_keys(
        &self,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tokens)] tokens: u64,
    ) -> PyResult<Keys> {
        self.check_sound()?;
        let keys = ready_keys(keys, tokens / u64::from(self.block_size))?;
        let chain = Chain::ready(self.block_size, keys, tokens);
        Ok(Keys(chain.map_err(Failure::from)?))
    }
}
