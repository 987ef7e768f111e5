// Numbers as a person reads them. They say the same as `tools/units.py`.
//
//   words.count(12345)      "12,345"          words.size(2 ** 31)     "2.00 GiB"
//   words.percent(0.5)      "50.0 %"          words.duration(0.25)    "250 ms"
//   words.whole(0.5)        "50 %", for the ticks of an axis
//   words.shortly(0.25)     "250 ms", two digits at most, for the ticks of an axis
const words = (() => {
  const digits = (value) => (value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2);
  const count = (value) => value.toLocaleString("en-US");
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const whole = (value) => `${Math.round(100 * value)} %`;

  function duration(seconds) {
    if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} min`;
    if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds) % 60).padStart(2, "0")} s`;
    for (const [unit, per] of [["s", 1], ["ms", 1e3]]) {
      if (seconds * per >= 1) return `${(seconds * per).toFixed(digits(seconds * per))} ${unit}`;
    }
    return seconds ? `${(seconds * 1e6).toFixed(digits(seconds * 1e6))} µs` : "0 s";
  }

  function size(bytes) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (bytes < 1024) return `${bytes.toFixed(unit === "B" ? 0 : digits(bytes))} ${unit}`;
      bytes /= 1024;
    }
    return `${bytes.toFixed(digits(bytes))} TiB`;
  }

  function shortly(seconds) {
    for (const [unit, per] of [["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]]) {
      if (seconds >= per && (per < 60 || seconds >= 2 * per)) return `${+(seconds / per).toPrecision(2)} ${unit}`;
    }
    return seconds ? `${+(seconds * 1e6).toPrecision(2)} µs` : "0";
  }

  return { count, percent, whole, duration, size, shortly };
})();
