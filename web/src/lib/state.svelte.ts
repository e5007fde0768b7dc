// What is asked: up to three set-ups, the one in hand, and the view. All of it lives in the address (#…), so that a
// link, the back button and a reload are the same page.
import type { Value } from './contract'

export type Fields = Record<string, Value>
/** Limits of a plan, by the names of its flags. */
export interface Limits { within: string; max_usd: string; eu: boolean; spot: boolean }
/** `config`: the text of a config.json that was dropped, '' where the model goes by a name. */
export interface Setup { fields: Fields; limits: Limits; config: string }
export type View = 'look' | 'compare' | 'runs' | 'trace'

export const MOST_SETUPS = 3
const NO_LIMITS: Limits = { within: '', max_usd: '', eu: false, spot: false }
/** What the page opens with: the example of the README's first lines, short enough to be changed. */
const FIRST: Fields = {
  model: 'llama-3.1-8b', method: 'qlora', 'lora.rank': 16, 'lora.targets': 'all-linear', optimizer: 'paged_adamw_8bit',
  seq_len: 2048, micro_batch: 1, grad_accum: 16, 'hardware.gpu': 'rtx-4090', 'data.tokens': 20000000, 'data.epochs': 3,
}

/** `{"lora.rank": 8}` is `{"lora": {"rank": 8}}`, as a job's file has it. */
export function nested(fields: Fields): Record<string, unknown> {
  const job: Record<string, unknown> = Object.create(null)
  for (const [name, value] of Object.entries(fields)) {
    const parts = name.split('.')
    let place = job
    for (const part of parts.slice(0, -1)) {
      if (typeof place[part] !== 'object' || place[part] === null) place[part] = Object.create(null)
      place = place[part] as Record<string, unknown>
    }
    place[parts.at(-1)!] = value
  }
  return job
}

/** The other way; what is null stays out, since nothing was said. */
export function flat(job: Record<string, unknown>, prefix = ''): Fields {
  const fields: Fields = {}
  for (const [name, value] of Object.entries(job)) {
    if (value === null || value === undefined) continue
    if (typeof value === 'object' && !Array.isArray(value)) Object.assign(fields, flat(value as Record<string, unknown>, `${prefix}${name}.`))
    else fields[prefix + name] = value as Value
  }
  return fields
}

/** An address comes from anybody: names of fields, and nothing that an object has by itself. */
const FIELD = /^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){0,3}$/

/** What the server is asked of a set-up. */
export function asked({ fields, config }: Setup): Record<string, unknown> {
  return { job: nested(fields), ...(config ? { model_config: JSON.parse(config) } : {}) }
}

function written({ fields, limits, config }: Setup): string {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(fields)) query.set(name, typeof value === 'string' ? value : JSON.stringify(value))
  for (const [name, value] of Object.entries(limits)) if (value) query.set(`plan.${name}`, String(value))
  if (config) query.set('config', config)
  return query.toString()
}

function read(text: string): Setup {
  const setup: Setup = { fields: {}, limits: { ...NO_LIMITS }, config: '' }
  for (const [name, value] of new URLSearchParams(text)) {
    if (name === 'plan.within' || name === 'plan.max_usd') setup.limits[name === 'plan.within' ? 'within' : 'max_usd'] = value
    else if (name === 'plan.eu' || name === 'plan.spot') setup.limits[name === 'plan.eu' ? 'eu' : 'spot'] = value === 'true'
    else if (name === 'config') setup.config = isObject(value) ? value : ''
    else if (FIELD.test(name)) setup.fields[name] = parsed(name, value)
  }
  return setup
}

function isObject(text: string): boolean {
  try {
    return typeof JSON.parse(text) === 'object'
  } catch {
    return false
  }
}

function parsed(name: string, value: string): Value {
  if (name === 'model' || name === 'id') return value
  try {
    const found: unknown = JSON.parse(value)
    return typeof found === 'object' && found !== null && !Array.isArray(found) ? value : (found as Value)
  } catch {
    return value
  }
}

/** A file somebody trains with, as it was dropped: it can be exported with what was changed here. Not in the address. */
export interface TrainersFile { name: string; text: string }

class Page {
  view = $state<View>('look')
  dropped = $state.raw<TrainersFile | null>(null)
  setups = $state<Setup[]>([{ fields: { ...FIRST }, limits: { ...NO_LIMITS }, config: '' }])
  at = $state(0)

  get setup(): Setup {
    return this.setups[this.at] ?? this.setups[0]!
  }

  /** null takes the field out: the training code's default holds. */
  set(changes: Fields): void {
    const fields = { ...this.setup.fields }
    for (const [name, value] of Object.entries(changes))
      if (value === null) delete fields[name]
      else fields[name] = value
    this.setup.fields = fields
  }

  limit(changes: Partial<Limits>): void {
    this.setup.limits = { ...this.setup.limits, ...changes }
  }

  replace(fields: Fields): void {
    this.setup.fields = fields
    this.setup.config = ''
  }

  /** A model by its name, or by the text of its config.json. */
  model(name: string, config = ''): void {
    this.set({ model: name })
    this.setup.config = config
  }

  add(): void {
    if (this.setups.length >= MOST_SETUPS) return
    const { fields, limits, config } = this.setup
    this.setups.push({ fields: { ...fields }, limits: { ...limits }, config })
    this.at = this.setups.length - 1
  }

  remove(index: number): void {
    this.setups.splice(index, 1)
    this.at = Math.min(this.at > index ? this.at - 1 : this.at, this.setups.length - 1)
    if (this.setups.length < 2 && this.view === 'compare') this.view = 'look'
  }

  get address(): string {
    const at = this.at ? `@${this.at + 1}` : ''
    return `#/${this.view}${at}?${this.setups.map(written).join(';')}`
  }

  open(address: string): void {
    const found = /^#\/(look|compare|runs|trace)(?:@([1-3]))?(?:\?(.*))?$/.exec(address)
    if (!found) return
    this.view = found[1] as View
    if (found[3]) this.setups = found[3].split(';').slice(0, MOST_SETUPS).map(read)
    this.at = Math.min(Number(found[2] ?? 1), this.setups.length) - 1
  }
}

export const page = new Page()
export const LETTERS = ['A', 'B', 'C']
