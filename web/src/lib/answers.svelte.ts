// Asks the server whenever a set-up changes: the prediction at once, then every card, what to change and the plan when hands
// rest.
import { Newest, Refusal, events, post } from './api'
import { grouped } from './format'
import type { Cards, Choice, Fit, Looked, Plan } from './contract'
import { asked, type Setup } from './state.svelte'
import { typedNumber } from './typed'

const FIT_AFTER_MS = 350
const PLAN_AFTER_MS = 700

/** The answers to one set-up. An answer stays, dimmed, until the next one comes. */
export class Answers {
  looked = $state.raw<Looked | null>(null)
  cards = $state.raw<Cards | null>(null)
  cardsStale = $state(false)
  refusal = $state.raw<Refusal | null>(null)
  fit = $state.raw<Fit | null>(null)
  plan = $state.raw<Plan | null>(null)
  coming = $state.raw<Choice[]>([])
  planRefusal = $state.raw<Refusal | null>(null)
  planning = $state(false)
  progress = $state('')
  stale = $state(false)
  fitting = $state(false)
  took_ms = $state(0)

  private fitTimer = 0
  private planTimer = 0
  private planAbort: AbortController | null = null
  private fitAbort: AbortController | null = null
  private started = 0
  private readonly newest = new Newest<Setup, Looked>(
    // of a page that opens all at once, so that nothing moves; then the verdict first, and the cards while it is read
    (setup) => post<Looked>('look', { ...asked(setup), cards: this.cards === null }),
    (answer, setup, isNewest) => {
      this.looked = answer
      this.refusal = null
      if (answer.cards) this.cards = answer.cards
      else this.newestCards.put(setup)
      this.cardsStale = !answer.cards
      this.stale = !isNewest
      if (isNewest) this.took_ms = performance.now() - this.started
    },
    (failure) => {
      this.stale = false
      this.refusal = failure instanceof Refusal ? failure : new Refusal(String(failure), null, 'page')
    },
  )

  private readonly newestCards = new Newest<Setup, Cards>(
    (setup) => post<Cards>('cards', asked(setup)),
    (answer, _, isNewest) => {
      this.cards = answer
      this.cardsStale = !isNewest
    },
    () => (this.cardsStale = true), // what is wrong with the job was said of its prediction
  )

  ask(setup: Setup): void {
    this.stale = true
    this.started = performance.now()
    this.newest.put(setup)
    clearTimeout(this.fitTimer)
    clearTimeout(this.planTimer)
    this.planAbort?.abort()
    this.fitAbort?.abort()
    this.fitting = this.planning = true // what is there is of the job before
    this.coming = []
    this.progress = ''
    this.fitTimer = window.setTimeout(() => void this.askFit(setup), FIT_AFTER_MS)
    this.planTimer = window.setTimeout(() => void this.askPlan(setup), PLAN_AFTER_MS)
  }

  private async askFit(setup: Setup): Promise<void> {
    const abort = (this.fitAbort = new AbortController())
    try {
      const fit = await post<Fit>('fit', asked(setup), abort.signal)
      if (!abort.signal.aborted) this.fit = fit
    } catch {
      if (!abort.signal.aborted) this.fit = null
    } finally {
      if (this.fitAbort === abort && !abort.signal.aborted) this.fitting = false
    }
  }

  private async askPlan(setup: Setup): Promise<void> {
    const abort = (this.planAbort = new AbortController())
    this.planRefusal = null
    try {
      for await (const { event, data } of events('plan', { ...asked(setup), ...options(setup) }, abort.signal)) {
        if (abort.signal.aborted) return
        if (event === 'plan') this.plan = data
        else if (event === 'error') throw new Refusal(data.message, data.field, data.code)
        else if (event === 'progress') this.progress = `searching: ${grouped(data.done)} of ${grouped(data.all)} predicted or ruled out`
        else if (event === 'choice') this.coming = [...this.coming.filter((each) => each.hardware !== data.hardware), data]
        else if (event === 'failure') this.planRefusal = new Refusal(data.message, data.field, data.code)
      }
    } catch (failure) {
      if (abort.signal.aborted) return
      this.plan = null
      this.planRefusal = failure instanceof Refusal ? failure : new Refusal(String(failure), null, 'page')
    } finally {
      if (this.planAbort === abort && !abort.signal.aborted) this.planning = false
    }
  }
}

/** Options of a plan, by the names of `tunecast.plan`. A budget that is no number goes as it was typed, and is refused. */
export function options({ limits }: Setup): Record<string, unknown> {
  return {
    ...(limits.within ? { within: limits.within } : {}),
    ...(limits.max_usd ? { max_usd: typedNumber(limits.max_usd) ?? limits.max_usd } : {}),
    ...(limits.eu ? { eu: true } : {}),
    ...(limits.spot ? { spot: true } : {}),
  }
}
