// What a command answered, as a document that is only read: text as the command prints it, in columns.
import * as vscode from 'vscode'
import { quoted } from './terminals'

/** A language of its own, so that such a document has neither a map nor numbers beside it (package.json). */
const LANGUAGE = 'tunecast-result'
const SCHEME = 'tunecast-result'
/** What the language server answers to each of its commands. */
export interface Result { title: string; text: string; json: unknown; command: string[] }

export class Results implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>()
  private readonly changed = new vscode.EventEmitter<vscode.Uri>()
  private readonly registrations = [
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, this),
  ]
  readonly onDidChange = this.changed.event

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? ''
  }

  /** Beside the file it is about, which keeps the cursor; asked again, it takes the place of the answer before. */
  async show({ title, text, command }: Result): Promise<void> {
    const uri = vscode.Uri.from({ scheme: SCHEME, path: `/${title.replaceAll(/[/\\?#]+/g, ' ').trim() || 'tunecast'}` })
    const words = command.map((word) => quoted(vscode.workspace.asRelativePath(word, false)))
    const asked = words.length ? `$ ${words.join(' ')}\n\n` : ''
    this.texts.set(uri.toString(), `${asked}${text.trimEnd()}\n`)
    this.changed.fire(uri)
    const document = await vscode.languages.setTextDocumentLanguage(await vscode.workspace.openTextDocument(uri), LANGUAGE)
    await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: false })
  }

  dispose(): void {
    for (const each of [...this.registrations, this.changed]) each.dispose()
  }
}
