// Figures as the commands print them. Each function names the one it repeats; tests/browser compares both.

const KIB = 2 ** 10
const MIB = 2 ** 20
export const GIB = 2 ** 30
const MINUTE = 60
const HOUR = 3600
const DAY = 24 * HOUR
const MOST_HOURS = 48 * HOUR

/** Python's `,` of a format: thousands by commas. */
export function grouped(value: number, decimals = 0): string {
  return value.toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
}

/** `units.gib`: `74.85 GiB`, or MiB, KiB, B below one of the next. */
export function gib(bytes: number): string {
  for (const [size, name] of [[GIB, 'GiB'], [MIB, 'MiB'], [KIB, 'KiB']] as const)
    if (Math.abs(bytes) >= size) return `${(bytes / size).toFixed(2)} ${name}`
  return `${Math.trunc(bytes)} B`
}

/** `report.run.verdict.between`: `30.9 to 33.5`, in the unit its middle is told in. */
export function between(low: number, high: number, of: number): string {
  const [size, name] = of >= GIB ? [GIB, ''] : of >= MIB ? [MIB, ' MiB'] : [KIB, ' KiB']
  const [a, b] = [low / size, high / size]
  const decimals = size === GIB ? (a.toFixed(1) !== b.toFixed(1) ? 1 : 2) : 0
  return `${a.toFixed(decimals)} to ${b.toFixed(decimals)}${name}`
}

/** Python's `.3g`. */
function general(value: number, digits: number): string {
  return value === 0 ? '0' : String(Number(value.toPrecision(digits)))
}

/** `report.run.time.duration`: `0.84 s`, `42.1 s`, `3 min 20 s`, `25 h 51 min`, `3 d 4 h`. */
export function duration(seconds: number): string {
  if (seconds < MINUTE) return `${general(seconds, 3)} s`
  const whole = Math.round(seconds)
  for (const [unit, name, partSize, part] of [[DAY, 'd', HOUR, 'h'], [HOUR, 'h', MINUTE, 'min'], [MINUTE, 'min', 1, 's']] as const)
    if (whole >= unit && (unit < DAY || whole > MOST_HOURS)) {
      const rest = Math.floor((whole % unit) / partSize)
      return rest ? `${Math.floor(whole / unit)} ${name} ${rest} ${part}` : `${Math.floor(whole / unit)} ${name}`
    }
  return `${whole} s`
}

/** `report.run.time._between`. */
export function durations(low: number, high: number): string {
  const [a, b] = [duration(low), duration(high)]
  return a === b ? '' : `${a} to ${b}`
}

/** `report.run.time.span`: `3.8 to 4.7 h`, `33 to 53 min`. */
export function span(low: number, high: number): string {
  let [unit, name] = high < 2 * MINUTE ? [1, 's'] : high < 2 * HOUR ? [MINUTE, 'min'] : [HOUR, 'h']
  if (low > MOST_HOURS) [unit, name] = [DAY, 'd']
  const decimals = low >= 10 * unit && Math.round(low / unit) !== Math.round(high / unit) ? 0 : 1
  return `${grouped(low / unit, decimals)} to ${grouped(high / unit, decimals)} ${name}`
}

/** `report.plan.words._number`. */
function money(value: number): string {
  if (Math.abs(value) >= 1000) return grouped(value)
  return Math.abs(value) >= 0.0995 || !value ? value.toFixed(2) : general(value, 2)
}

/** `report.plan.words.amount`: `$14.31`. */
export const usd = (value: number): string => `$${money(value)}`

/** `report.plan.words.amounts`: `12.90 to 15.90`; '' where both ends read the same. */
export function amounts(low: number, high: number): string {
  const [a, b] = [money(low), money(high)]
  return a === b ? '' : `${a} to ${b}`
}

/** `units.percent`. */
export const percent = (fraction: number, digits = 0): string => `${(100 * fraction).toFixed(digits)} %`

/** `units.billions`: `8.03B`, `124.4M`. */
export const billions = (count: number): string =>
  count >= 1e9 ? `${(count / 1e9).toFixed(2)}B` : `${(count / 1e6).toFixed(1)}M`

/** `hardware.spec.card_name`: `rtx-4090` is an `RTX 4090`, `a100-sxm-80gb` an `A100 SXM 80 GB`. */
export function cardName(name: string): string {
  return name.split('-').map((word) => WORDS[word] ?? word.replace(/(\d+)gb/, '$1 GB').toUpperCase()).join(' ')
}
const WORDS: Record<string, string> = {
  pcie: 'PCIe', ada: 'Ada', workstation: 'Workstation', server: 'Server', ti: 'Ti', super: 'Super', laptop: 'Laptop',
  titan: 'Titan', quadro: 'Quadro', max: 'Max', gaudi2: 'Gaudi 2', gaudi3: 'Gaudi 3',
}

/** A value as YAML has it on one line: `report.run.wording.value_in_yaml`. */
export function inYaml(value: unknown): string {
  if (Array.isArray(value)) return `[${value.join(', ')}]`
  return value === null ? 'null' : String(value)
}

/** `report.run.wording.in_yaml`: changes as a job's file has them. */
export const setWords = (set: Record<string, unknown>): string =>
  Object.entries(set).map(([field, value]) => `${field}: ${inYaml(value)}`).join(', ')

/** `report.lists.fit.time_words`, for the same tokens: `27 % more time`, `2.4 times the time`. */
export function timeWords(more: number | null): string {
  if (more === null) return 'time not known'
  if (Math.abs(more) <= 0.005) return 'same time'
  if (more >= 1) return `${(1 + more).toFixed(1)} times the time`
  return `${percent(Math.abs(more))} ${more > 0 ? 'more' : 'less'} time`
}

/** `report.lists.fit._words`: `frees 41.20 GiB, 27 % more time`. */
export function effectWords(frees: number | null, more: number | null): string {
  if (frees === null) return 'valid only with the others'
  const memory = frees > 0 ? [`frees ${gib(frees)}`] : frees < 0 ? [`takes ${gib(-frees)} more`] : []
  return [...memory, timeWords(more)].join(', ')
}
