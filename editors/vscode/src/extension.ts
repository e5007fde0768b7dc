// The extension: a thin client of `tunecast lsp`, and a panel with the page of `tunecast serve`.
//
// find.ts       which tunecast
// server.ts     the language server, whose diagnostics, hints, lenses and actions need nothing here
// results.ts    what plan and fit answer
// lines.ts      memory by line
// page.ts       the page beside the editor; job.ts: the job in its address
// terminals.ts  commands that are typed and not run
import { basename } from 'node:path'
import * as vscode from 'vscode'
import { find, onSelected, type Missing, type Parts, type Tunecast } from './find'
import type { Limits } from './job'
import { Lines } from './lines'
import { Page } from './page'
import { Results } from './results'
import { LANGUAGES, Server } from './server'
import { quoted, type } from './terminals'

const ASKED = ['plan', 'fit', 'launch', 'trace'] as const
const PACKAGE = 'tunecast[lsp,serve]'
const NEVER = 'neverInstall'
/** A file of which somebody would want to know: in others nothing is offered. */
const TRAINING = /^\s*["']?(base_model|model_name_or_path|lora_r|lora_rank|micro_batch_size|per_device_train_batch_size)\b|#\s*tunecast:|\b(TrainingArguments|SFTConfig|LoraConfig|SFTTrainer)\(/m

let tool: Tool | undefined

export function activate(context: vscode.ExtensionContext): void {
  tool = new Tool(context)
}

export async function deactivate(): Promise<void> {
  await tool?.stop()
}

class Tool {
  private readonly results = new Results()
  private readonly lines = new Lines()
  private readonly page = new Page(() => this.tunecast('serve'))
  private readonly log = vscode.window.createOutputChannel('tunecast')
  private found: Promise<Tunecast | Missing>
  private server: Promise<Server | undefined> = Promise.resolve(undefined)
  private offered = false

  constructor(private readonly context: vscode.ExtensionContext) {
    const command = (name: string, run: (...given: unknown[]) => unknown) =>
      vscode.commands.registerCommand(`tunecast.${name}`, async (...given: unknown[]) => {
        try {
          return await run(...given)
        } catch (error) {
          if (!(error instanceof vscode.CancellationError)) void vscode.window.showErrorMessage(`tunecast ${name}: ${message(error)}`)
        }
      })
    context.subscriptions.push(
      this.results,
      this.lines,
      this.page,
      this.log,
      ...ASKED.map((name) => command(name, (uri) => this.ask(name, uri))),
      command('watch', (uri) => this.watch(uri)),
      command('page', () => this.page.open(atHand(), limits())),
      command('restart', () => this.restart()),
      vscode.workspace.onDidChangeConfiguration((changed) => {
        if (['tunecast.path', 'python.defaultInterpreterPath'].some((name) => changed.affectsConfiguration(name))) void this.restart()
      }),
      vscode.window.onDidChangeActiveTextEditor(() => void this.offer()),
    )
    this.found = find(folder())
    void this.restart()
    void onSelected(() => void this.restart()).then((each) => each && context.subscriptions.push(each), () => undefined)
  }

  /** One after another: the old server has ended before the new one starts. */
  restart(): Promise<unknown> {
    const before = this.server
    const found = (this.found = find(folder()))
    this.server = before
      .catch(() => undefined)
      .then(async (running) => {
        await running?.stop()
        const tunecast = await found
        if (!('words' in tunecast)) return undefined
        this.log.appendLine([...tunecast.words, 'lsp'].map(quoted).join(' '))
        return Server.start(tunecast, this.lines, this.log)
      })
    return this.server.then(() => this.offer(), (error) => this.say(error))
  }

  private async say(error: unknown): Promise<void> {
    const told = `tunecast lsp did not start: ${message(error)}`
    if ((await vscode.window.showErrorMessage(told, 'Output')) === 'Output') this.log.show()
  }

  async stop(): Promise<void> {
    this.page.dispose()
    await (await this.server.catch(() => undefined))?.stop()
  }

  /** For what somebody asked for just now: where a part of it is missing, that is offered first. */
  private async tunecast(part: keyof Parts): Promise<Tunecast | undefined> {
    const found = await this.found
    if ('words' in found && found.has[part]) return found
    await this.install('words' in found ? { environment: found.python, parts: found.has } : found)
    const then = await this.found
    return 'words' in then && then.has[part] ? then : undefined
  }

  /** Once, beside a file of a training. */
  private async offer(): Promise<void> {
    const document = vscode.window.activeTextEditor?.document
    if (this.offered || this.context.globalState.get(NEVER) || !document || !LANGUAGES.includes(document.languageId)) return
    if (!TRAINING.test(document.getText().slice(0, 20_000))) return
    const found = await this.found
    if ('words' in found || this.offered) return
    this.offered = true
    await this.install(found)
  }

  private async install({ environment, parts }: Missing): Promise<void> {
    if (!environment) {
      const told = 'tunecast was not found, nor a Python to install it into. Select a Python environment, or set tunecast.path.'
      if ((await vscode.window.showWarningMessage(told, 'Settings')) === 'Settings') await vscode.commands.executeCommand('workbench.action.openSettings', 'tunecast.path')
      return
    }
    const words = [environment, '-m', 'pip', 'install', ...(parts?.tunecast ? ['--upgrade'] : []), PACKAGE]
    const told = !parts?.tunecast ? 'tunecast is not installed' : parts.lsp ? 'tunecast has no page yet' : 'tunecast has no language server yet'
    const answer = await vscode.window.showInformationMessage(`${told} in ${environment}. To fix: ${words.slice(2, -1).join(' ')} '${PACKAGE}'`, 'Install', 'Settings', 'Never')
    if (answer === 'Never') await this.context.globalState.update(NEVER, true)
    if (answer === 'Settings') await vscode.commands.executeCommand('workbench.action.openSettings', 'tunecast.path')
    if (answer !== 'Install') return
    const task = new vscode.Task(
      { type: 'process', task: 'install' },
      folder() ?? vscode.TaskScope.Workspace,
      'install',
      'tunecast',
      new vscode.ProcessExecution(words[0]!, words.slice(1)),
    )
    const ended = new Promise<number | undefined>((done) => {
      const listening = vscode.tasks.onDidEndTaskProcess(({ execution, exitCode }) => {
        if (execution.task.name !== task.name || execution.task.source !== task.source) return
        listening.dispose()
        done(exitCode)
      })
    })
    await vscode.tasks.executeTask(task)
    const code = await ended
    if (code === 0) await this.restart()
    else void vscode.window.showErrorMessage(`tunecast could not be installed: pip ended with ${code}. The terminal says why.`)
  }

  private async ask(name: (typeof ASKED)[number], given: unknown): Promise<void> {
    const uri = uriOf(given)
    if (!(await this.tunecast('lsp'))) return
    const server = await this.server
    if (!server) throw new Error('the language server is not running. To fix: tunecast: Restart the language server')
    const title = `tunecast ${name}: ${basename(uri.fsPath)}`
    const result = await vscode.window.withProgress({ location: vscode.ProgressLocation.Notification, title, cancellable: true }, (_, token) =>
      server.ask(`tunecast.${name}`, uri, token),
    )
    if (!result) return
    if (result.json === null) throw new Error(result.text) // refused: there is no answer, and nothing to launch
    if (name === 'launch') type('tunecast launch', await this.own(result.command), folder(uri)?.uri.fsPath)
    else await this.results.show(result)
  }

  private async watch(given: unknown): Promise<void> {
    const uri = uriOf(given)
    const tunecast = await this.tunecast('tunecast')
    if (!tunecast) return
    const cwd = folder(uri)?.uri.fsPath
    type('tunecast watch', [...tunecast.words, 'watch', '--', tunecast.python ?? 'python', uri.fsPath], cwd)
  }

  /** A command as it is typed here: by the tunecast that was found, which need not be on the PATH. */
  private async own(command: string[]): Promise<string[]> {
    const found = await this.found
    return command[0] === 'tunecast' && 'words' in found ? [...found.words, ...command.slice(1)] : command
  }
}

/** What a lens says, a file that was clicked, or the one at hand. */
function uriOf(given: unknown): vscode.Uri {
  if (typeof given === 'string') return vscode.Uri.parse(given)
  if (given instanceof vscode.Uri) return given
  const document = atHand()
  if (!document) throw new Error('no file is open that says what to train')
  return document.uri
}

function atHand(): vscode.TextDocument | undefined {
  const fits = (document: vscode.TextDocument | undefined) => document?.uri.scheme === 'file' && LANGUAGES.includes(document.languageId)
  const shown = [vscode.window.activeTextEditor, ...vscode.window.visibleTextEditors].map((editor) => editor?.document)
  return shown.find(fits)
}

function folder(uri?: vscode.Uri): vscode.WorkspaceFolder | undefined {
  const near = uri ?? vscode.window.activeTextEditor?.document.uri
  return (near && vscode.workspace.getWorkspaceFolder(near)) ?? vscode.workspace.workspaceFolders?.[0]
}

function limits(): Limits {
  const settings = vscode.workspace.getConfiguration('tunecast')
  return {
    gpu: settings.get('gpu', ''),
    gpus: settings.get<number | null>('gpus', null),
    within: settings.get('within', ''),
    budget: settings.get<number | null>('budget', null),
    eu: settings.get('eu', false),
  }
}

const message = (error: unknown): string => (error instanceof Error ? error.message : String(error))
